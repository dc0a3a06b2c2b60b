"""vLLM's layer-wise reload, bucket by bucket, with what it leaves undone on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from rlhf.errors import TransferError


class Reload:
    """One reload of all weights of a live vLLM model: construct, `load` each bucket, `finish`."""

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        self._model: Any = model
        self._model_config = model_config
        self._awaited = {name for name, _ in model.named_parameters()}
        initialize_layerwise_reload(model)

    def load(self, tensors: Iterator[tuple[str, Tensor]], buffer: Tensor) -> None:
        """Load tensors that are views of `buffer`, which may be filled again afterwards."""
        self._awaited -= set(self._model.load_weights(tensors))
        _leave(buffer, self._model)

    def finish(self) -> None:
        """Put the model back in service. Raises `TransferError` naming weights that no tensor reached."""
        finalize_layerwise_reload(self._model, self._model_config)  # type: ignore[no-untyped-call]
        repack_tied_heads(self._model)
        if self._awaited:
            names = sorted(self._awaited)
            raise TransferError(f"no tensor was sent for {', '.join(names[:5])} ({len(names)} weights of the engine)")


def repack_tied_heads(model: nn.Module) -> None:
    """On a CPU vLLM multiplies by a packed copy of the head. The reload renews the copy of layers that were loaded, and
    a tied head is not: its weight is the embedding's. Without this the engine serves the old head, silently."""
    # A head is an embedding too, in vLLM's classes.
    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    heads = [module for module in embeddings if isinstance(module, ParallelLMHead)]
    for head in heads:
        if any(head.weight is other.weight for other in embeddings if other is not head):
            head.quant_method.process_weights_after_loading(head)


def _leave(buffer: Tensor, model: nn.Module) -> None:
    """Copy what unfinished layers still hold of `buffer` (for instance q without k and v, where a bucket ended)."""
    storage = buffer.untyped_storage().data_ptr()
    for layer in model.modules():
        for _, arguments in get_layerwise_info(layer).loaded_weights:
            for key, value in arguments.arguments.items():
                if isinstance(value, Tensor) and not value.is_meta and value.untyped_storage().data_ptr() == storage:
                    arguments.arguments[key] = value.clone()
