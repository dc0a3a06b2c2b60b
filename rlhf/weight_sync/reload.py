"""Reload a live vLLM model by layer and bucket; do on a CPU the steps that vLLM's own reload leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info


class Reload:
    """One reload of all weights of a live vLLM model: construct it, `load` each bucket and `leave` it before its memory
    is used again, `finish`. A rehearsal has checked that the buckets contain every weight
    (`rlhf.weight_sync.rehearsal`)."""

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        self._model: Any = model
        self._model_config = model_config
        pack_experts_again(model)
        initialize_layerwise_reload(model)

    def load(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Load tensors that are views of one buffer."""
        self._model.load_weights(tensors)

    def leave(self, buffer: Tensor) -> None:
        """Copy tensors in `buffer` that unfinished layers still need (for instance q without k and v, when a bucket
        ends there); afterwards it may be reused."""
        storage = buffer.untyped_storage().data_ptr()
        for layer in self._model.modules():
            for _, arguments in get_layerwise_info(layer).loaded_weights:
                for key, value in arguments.arguments.items():
                    if (
                        isinstance(value, Tensor)
                        and not value.is_meta
                        and value.untyped_storage().data_ptr() == storage
                    ):
                        arguments.arguments[key] = value.clone()

    def finish(self) -> None:
        """Finish the reload, so that the model can serve again."""
        finalize_layerwise_reload(self._model, self._model_config)  # type: ignore[no-untyped-call]
        share_packed_embeddings(self._model)


def pack_experts_again(model: nn.Module) -> None:
    """Make vLLM pack the experts' weights again. On a CPU it packs them when it makes their kernel, which it does once,
    so reloaded weights would be read in the wrong order. Without a kernel the reload makes one, and packs."""
    for module in model.modules():
        method = vars(module).get("quant_method") or module._modules.get("quant_method")
        if isinstance(method, UnquantizedFusedMoEMethod) and method.unquantized_backend == UnquantizedMoeBackend.CPU:
            method.moe_kernel = None


def share_packed_embeddings(model: nn.Module) -> None:
    """Let tied heads multiply by the embedding's packed copy. On a CPU vLLM multiplies by a packed copy of the head.
    The reload packs every loaded layer, but not a tied head, whose weight is the embedding's. Without this the engine
    silently uses the old head. Packing it once more would cost a seventh of a reload, and the memory."""
    # In vLLM's classes a head is an embedding too.
    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    heads = [module for module in embeddings if isinstance(module, ParallelLMHead)]
    for head in heads:
        for other in embeddings:
            if other is not head and other.weight is head.weight and "cpu_linear" in vars(other):
                head.cpu_linear = vars(other)["cpu_linear"]
