"""LoRA in a vLLM engine: an adapter for each policy, replaced by every weight sync, also for requests in flight.

vLLM multiplies by `A`, then by `B`, and adds the result to the base model's output; the base is never changed. vLLM
itself loads adapters only from folders: here they come like all weights, and are put into its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch import Tensor, nn
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.request import LoRARequest

from rlhf.errors import TransferError
from rlhf.weight_sync.types import Manifest
from rlhf.weight_sync.vllm_internals import adapter_manager

PATH = "comes by publishes alone"
"""The path in requests. vLLM would open it, and fail, if the adapter were not loaded."""
A, B = ".lora_A.weight", ".lora_B.weight"


def adapter_requests(policies: Sequence[str], folders: Sequence[str] = ()) -> dict[str, LoRARequest]:
    """Return what names each policy's adapter in vLLM; `""` is the one of a run without names. vLLM itself loads those
    that have `folders`."""
    return {
        policy: LoRARequest(lora_name=policy or "policy", lora_int_id=place, lora_path=path)
        for place, (policy, path) in enumerate(zip_longest(policies, folders, fillvalue=PATH), 1)
    }


class AdapterReload:
    """One reload of all adapters, with the steps of `Reload`; `finish` sets the `layers` of each policy."""

    layers: dict[str, dict[str, LoRALayerWeights]]

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tensors: dict[str, Tensor] = {}

    def load(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Copy these tensors."""
        self._tensors |= {name: tensor.clone() for name, tensor in tensors}

    def leave(self, buffer: Tensor) -> None:
        """Do nothing: nothing in `buffer` is needed any more."""

    def finish(self) -> None:
        """Combine the tensors into pairs of A and B. Raises `TransferError` if one is missing."""
        own: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self._tensors.items():
            policy, layer = policy_and_layer(name)
            own.setdefault(policy, {})[named_in(self._model, layer)] = tensor
        self.layers = {policy: adapter_layers(tensors) for policy, tensors in own.items()}


def policy_and_layer(name: str) -> tuple[str, str]:
    """Split the name of a tensor in a manifest, `POLICY/LAYER`, or `LAYER` in a run without names."""
    policy, _, layer = name.rpartition("/")
    return policy, layer


def adapter_layers(tensors: Mapping[str, Tensor]) -> dict[str, LoRALayerWeights]:
    """vLLM's layers from pairs `LAYER.lora_A.weight` `[rank, in]` and `LAYER.lora_B.weight` `[out, rank]`; B was scaled
    by the sender. Raises `TransferError` for an incomplete pair, or for two different ranks."""
    layers = {name.removesuffix(A).removesuffix(B) for name in tensors}
    lonely = sorted(layer for layer in layers if layer + A not in tensors or layer + B not in tensors)
    if lonely:
        raise TransferError(f"{', '.join(lonely[:3])}: A came without B, or B without A")
    return {layer: _pair(layer, tensors[layer + A], tensors[layer + B]) for layer in sorted(layers)}


def adapter_names(model: nn.Module) -> set[str]:
    """Return the names of the tensors that the model's layers take from adapters: six for a fused qkv."""
    manager: Any = model.lora_manager
    targets: Sequence[str] = manager.lora_config.target_modules
    layers = (layer for module in manager.modules for layer in manager.packed_modules.get(module, [module]))
    return {layer + part for layer in layers if layer.rpartition(".")[2] in targets for part in (A, B)}


def named_in(model: nn.Module, name: str) -> str:
    """Return what the engine's `model` calls a tensor of a folder: models that also see nest their layers otherwise."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    return mapper.get_rename_mapper().map_name(name) if mapper else name


def unknown_and_missing(
    model: nn.Module, manifest: Manifest, policies: Sequence[str] = ("",)
) -> tuple[list[str], list[str]]:
    """Return the tensors of `manifest` that belong to no adapter of the policies, and those that one of them lacks.
    Those of other policies are for engines with another model."""
    sent = dict[tuple[str, str], str]()
    for spec in manifest.tensors:
        policy, layer = policy_and_layer(spec.name)
        if policy in policies:
            sent[policy, named_in(model, layer)] = spec.name
    wanted = {(policy, name) for policy in policies for name in adapter_names(model)}
    missing = sorted(f"{policy}/{name}" if policy else name for policy, name in wanted - set(sent))
    return [own for name, own in sent.items() if name not in wanted], missing


def serve_adapters(model_runner: Any, policies: Sequence[str], made: Callable[[Any, str, int], LoRAModel]) -> None:
    """Replace the adapters that a worker serves by `made(manager, policy, id)` of each policy."""
    manager = adapter_manager(model_runner)
    manager.remove_all_adapters()
    for policy, request in adapter_requests(policies).items():
        manager.add_adapter(made(manager, policy, request.lora_int_id))
        manager.activate_adapter(request.lora_int_id)


def _pair(layer: str, a: Tensor, b: Tensor) -> LoRALayerWeights:
    rank = a.shape[0]
    if b.shape[1] != rank:
        raise TransferError(f"{layer}: A has rank {rank}, B has rank {b.shape[1]}")
    return LoRALayerWeights(layer, rank=rank, lora_alpha=rank, lora_a=a, lora_b=b)
