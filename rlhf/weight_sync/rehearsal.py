"""Rehearse a weight sync without changing weights: find out which of vLLM's parameters the manifest's tensors fill.

Every vLLM model has a `load_weights` that renames, fuses, splits and stacks a checkpoint's tensors. Here it receives
empty tensors with the manifest's names and shapes, and counting loaders replace those of the parameters.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS, get_numel_loaded, to_meta_tensor
from vllm.model_executor.model_loader.reload.utils import get_tensor_load_numel
from vllm.model_executor.models.interfaces import SupportsMultiModal

from rlhf.errors import ModelError, Raised, catch
from rlhf.weight_sync.types import Manifest, TensorSpec
from rlhf.weight_sync.vllm_internals import give_up_reload, original_loader


class Rehearsed(NamedTuple):
    """`unknown`: names of the manifest that no parameter takes. `missing`: parameters that would keep some of their old
    values, by the engine's own names; for a partly filled one, also the share that would be sent."""

    unknown: list[str]
    missing: list[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Awaited:
    """A parameter to be filled: `kernel` is the tensor in use, shared by tied parameters."""

    name: str
    layer: nn.Module
    tensor: Tensor
    kernel: Tensor


def rehearse(model: nn.Module, manifest: Manifest) -> Rehearsed:
    """Return which parameters a weight sync of `model` with `manifest` would fill. The model is unchanged
    afterwards."""
    start_reload(model)
    loaders: list[tuple[Any, Any]] = []
    try:
        rehearsal = _Rehearsal(model, loaders)
        rehearsal.load(manifest)
        return Rehearsed(unknown=rehearsal.unknown(manifest), missing=rehearsal.missing())
    finally:
        for tensor, loader in loaders:
            tensor.weight_loader = loader
        give_up_reload(model)


def start_reload(model: nn.Module) -> None:
    """Start vLLM's reload, which asks every loader for its name: a `partial`, as MiniMax's, has none."""
    for parameter in model.parameters():
        loader = vars(parameter).get("weight_loader")
        if isinstance(loader, partial):
            loader.__name__ = "loader"  # type: ignore[attr-defined]
    initialize_layerwise_reload(model)


class _Rehearsal:
    """Replaces the loader of every parameter by one that counts; the original loaders are kept in `loaders`."""

    def __init__(self, model: nn.Module, loaders: list[tuple[Any, Any]]) -> None:
        self._model: Any = model
        self._awaited = list(_awaited(model))
        self._loaded: Counter[int] = Counter()
        self._taken: set[int] = set()
        self._turn = -1
        self._drawn = TensorSpec(name="no tensor", dtype="", shape=())
        for parameter in self._awaited:
            loader = original_loader(parameter.tensor)
            loaders.append((parameter.tensor, loader))
            parameter.tensor.weight_loader = self._counting(parameter, loader)  # type: ignore[attr-defined]

    def load(self, manifest: Manifest) -> None:
        """Raise `ModelError` if the model's own loader refuses a tensor, because of its shape for instance."""
        self._sent = [_empty(spec) for spec in manifest.tensors]
        loaded = catch(lambda: self._model.load_weights(self._in_turn(manifest)))
        if isinstance(loaded, Raised):
            at = self._drawn
            raise ModelError(f"it does not take {at.name} {at.dtype} {list(at.shape)}") from loaded.error

    def unknown(self, manifest: Manifest) -> list[str]:
        taken = (sent.untyped_storage().data_ptr() in self._taken for sent in self._sent)
        return [spec.name for spec, known in zip(manifest.tensors, taken, strict=True) if not known]

    def missing(self) -> list[str]:
        filled = {id(parameter.kernel) for parameter in self._awaited if self._share(parameter) == 1}
        still = self._frozen_tower()
        return [
            f"{parameter.name} ({self._share(parameter):.0%} of it)" if self._share(parameter) else parameter.name
            for parameter in self._awaited
            if id(parameter.kernel) not in filled and id(parameter) not in still
        ]

    def _frozen_tower(self) -> set[int]:
        """Return the parameters outside the language model if none of them is sent: the engine loaded them."""
        if not isinstance(self._model, SupportsMultiModal):
            return set()
        language_model: Any = self._model.get_language_model()
        language = set(map(id, language_model.modules()))
        others = [parameter for parameter in self._awaited if id(parameter.layer) not in language]
        # Some models keep the head of their vocabulary outside the language model.
        tower = [parameter for parameter in others if not isinstance(parameter.layer, VocabParallelEmbedding)]
        return set() if any(self._share(parameter) for parameter in tower) else set(map(id, tower))

    def _in_turn(self, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
        for spec, sent in zip(manifest.tensors, self._sent, strict=True):
            self._drawn = spec
            self._turn = sent.untyped_storage().data_ptr()
            yield spec.name, sent

    def _counting(self, parameter: _Awaited, loader: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(loader)

        @wraps(loader, assigned=("__doc__", "__annotations__"))
        def counting(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            given = [x for x in bound.arguments.values() if isinstance(x, Tensor) and x is not parameter.tensor]
            # A tensor derived by the model has its own storage, and was computed when its source was loaded.
            self._taken |= {self._turn, *(x.untyped_storage().data_ptr() for x in given if not x.is_meta)}
            bound.arguments["param"] = to_meta_tensor(parameter.tensor)
            count, answer = get_numel_loaded(loader, bound)
            self._loaded[id(parameter)] += count
            return answer

        return counting

    def _share(self, parameter: _Awaited) -> float:
        """Return the share of a parameter that is filled. An embedding is longer than its vocabulary: it is padded to a
        round number."""
        loaded = self._loaded[id(parameter)]
        if isinstance(parameter.layer, VocabParallelEmbedding):
            return float(loaded > 0)
        return loaded / max(get_tensor_load_numel(parameter.tensor), 1)


def _awaited(model: nn.Module) -> Iterator[_Awaited]:
    for path, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if info.kernel_tensors is None or is_deferred_attention_layer(layer):
            continue
        kernels, _ = info.kernel_tensors
        for name, tensor in layer.named_parameters(recurse=False):
            if name not in SKIP_LOAD_TENSORS:
                named = f"{path}.{name}" if path else name
                yield _Awaited(name=named, layer=layer, tensor=tensor, kernel=kernels.get(name, tensor))


def _empty(spec: TensorSpec) -> Tensor:
    """Return a tensor of this shape, with one value for all elements."""
    dtype: torch.dtype = vars(torch)[spec.dtype]
    return torch.zeros((), dtype=dtype).expand(spec.shape)
