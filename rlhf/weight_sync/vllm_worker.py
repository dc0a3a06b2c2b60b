"""The extension that vLLM loads into each of its workers. Importing it registers our receiver there."""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rlhf.weight_sync.lora import POLICY, serve_adapter
from rlhf.weight_sync.receiver import Receiver
from rlhf.weight_sync.types import ENGINE_BACKENDS, Seconds

for _backend in ENGINE_BACKENDS.values():
    if _backend not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_backend, Receiver)


class WorkerExtension:
    """Methods that vLLM's workers have besides their own, for `collective_rpc`."""

    weight_transfer_engine: Any
    model_runner: Any

    def received_seconds(self) -> Seconds:
        """Return the seconds of the worker's last weight sync, by activity."""
        spent: Seconds = self.weight_transfer_engine.seconds
        return spent

    def serve_zero_adapter(self) -> None:
        """Serve an adapter of zeros, until the first weight sync."""
        serve_adapter(self.model_runner, lambda manager: manager.create_dummy_lora(POLICY.lora_int_id, 1, {}))

    def serve_received_adapter(self) -> None:
        """Serve the received adapter from the next step on. vLLM removes all adapters when an update ends: call it
        after that."""
        serve_adapter(self.model_runner, lambda manager: self.weight_transfer_engine.received_adapter)
