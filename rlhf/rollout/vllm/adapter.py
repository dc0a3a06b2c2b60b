"""LoRA in a vLLM engine: one adapter for all requests, replaced by every weight sync, also for requests in flight.

vLLM multiplies by `A`, then by `B`, and adds the result to the base model's output; the base is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from vllm.lora.lora_model import LoRAModel
from vllm.lora.request import LoRARequest

POLICY = LoRARequest(lora_name="policy", lora_int_id=1, lora_path="comes by publishes alone")
"""The path in requests. vLLM would open it, and fail, if the adapter were not loaded."""


def adapter_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The model's layers that take adapters, each with the names of its tensors (six for a fused qkv)."""
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
    """Load an adapter of zeros, used until the first weight sync. vLLM calls this in each worker."""
    _serve(worker, lambda manager: manager.create_dummy_lora(POLICY.lora_int_id, 1, {}))


def install_received(worker: Any) -> None:
    """Use the received adapter from the next step on. vLLM calls this in each worker, after `finish_weight_update`,
    which removes all adapters."""
    layers = worker.weight_transfer_engine.received_adapter
    rank = max(layer.rank for layer in layers.values())
    _serve(worker, lambda manager: LoRAModel(POLICY.lora_int_id, rank, layers))


def _serve(worker: Any, made: Callable[[Any], LoRAModel]) -> None:
    manager = worker.model_runner.lora_manager._adapter_manager
    manager.remove_all_adapters()
    manager.add_adapter(made(manager))
    manager.activate_adapter(POLICY.lora_int_id)
