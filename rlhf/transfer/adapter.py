"""The receiver's side of a LoRA adapter sync: turns received tensors into vLLM's LoRA layers.

vLLM itself loads adapters only from folders. The engine's base weights do not change; `rlhf.rollout.vllm.adapter`
activates the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor
from vllm.lora.lora_weights import LoRALayerWeights

from rlhf.errors import TransferError

Layers = dict[str, LoRALayerWeights]
A, B = ".lora_A.weight", ".lora_B.weight"


class AdapterReload:
    """One reload of an adapter, with the steps of `Reload`; `finish` fills `layers`."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self.layers: Layers = {}

    def load(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Copy these tensors."""
        self._tensors |= {name: tensor.clone() for name, tensor in tensors}

    def leave(self, buffer: Tensor) -> None:
        """Nothing in `buffer` is needed any more."""

    def finish(self) -> None:
        """Combine the tensors into pairs of A and B. Raises `TransferError` if one is missing."""
        self.layers = adapter_layers(self._tensors)


def adapter_layers(tensors: Mapping[str, Tensor]) -> Layers:
    """vLLM's layers from pairs `LAYER.lora_A.weight` `[rank, in]` and `LAYER.lora_B.weight` `[out, rank]`; B was scaled
    by the sender. Raises `TransferError` for an incomplete pair, or for two different ranks."""
    layers = {name.removesuffix(A).removesuffix(B) for name in tensors}
    lonely = sorted(layer for layer in layers if layer + A not in tensors or layer + B not in tensors)
    if lonely:
        raise TransferError(f"{', '.join(lonely[:3])}: A came without B, or B without A")
    return {layer: _pair(layer, tensors[layer + A], tensors[layer + B]) for layer in sorted(layers)}


def _pair(layer: str, a: Tensor, b: Tensor) -> LoRALayerWeights:
    rank = a.shape[0]
    if b.shape[1] != rank:
        raise TransferError(f"{layer}: A has rank {rank}, B has rank {b.shape[1]}")
    return LoRALayerWeights(layer, rank=rank, lora_alpha=rank, lora_a=a, lora_b=b)
