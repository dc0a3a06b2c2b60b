"""LoRA in a vLLM engine: one adapter, which all requests name and every publish replaces, those in flight included.

vLLM multiplies by `A`, then by `B`, and adds, beside a base that stays as it was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from vllm.lora.lora_model import LoRAModel
from vllm.lora.request import LoRARequest

from rlhf.rollout.vllm.settings import EngineSettings

POLICY = LoRARequest(lora_name="policy", lora_int_id=1, lora_path="comes by publishes alone")
"""What requests name. vLLM would open its path, and fail, if the adapter were not there."""
SLOT_RANKS = (1, 8, 16, 32, 64, 128, 256, 512)
"""The sizes of vLLM's slots."""


def lora_arguments(settings: EngineSettings) -> dict[str, Any]:
    """vLLM's arguments for one adapter of the settings' rank and targets; none where there is no adapter."""
    if not settings.lora_rank:
        return {}
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": min(size for size in SLOT_RANKS if size >= settings.lora_rank),
        "lora_target_modules": list(settings.lora_targets),
    }


def adapter_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The model's layers that take adapters, each with the tensors that fill it (six for a fused qkv)."""
    manager: Any = model.lora_manager
    targets: Sequence[str] = manager.lora_config.target_modules
    return {
        module: tuple(
            f"{layer}.lora_{part}.weight"
            for layer in manager.packed_modules.get(module, [module])
            if layer.rpartition(".")[2] in targets
            for part in "AB"
        )
        for module in manager.modules
    }


def install_nothing(worker: Any) -> None:
    """Serve an adapter of zeros, until the first publish. vLLM calls this in each worker."""
    _serve(worker, lambda manager: manager.create_dummy_lora(POLICY.lora_int_id, 1, {}))


def install_received(worker: Any) -> None:
    """Serve the adapter that was received from the next step on. vLLM calls this in each worker; it comes after
    `finish_weight_update`, which drops every adapter."""
    layers = worker.weight_transfer_engine.received_adapter
    rank = max(layer.rank for layer in layers.values())
    _serve(worker, lambda manager: LoRAModel(POLICY.lora_int_id, rank, layers))


def _serve(worker: Any, made: Callable[[Any], LoRAModel]) -> None:
    manager = worker.model_runner.lora_manager._adapter_manager
    manager.remove_all_adapters()
    manager.add_adapter(made(manager))
    manager.activate_adapter(POLICY.lora_int_id)
