"""The extension that vLLM loads into each of its workers. Importing it registers our receiver there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.lora.lora_model import LoRAModel

from rlhf.errors import TransferError
from rlhf.weight_sync.lora import serve_adapters
from rlhf.weight_sync.receiver import Receiver
from rlhf.weight_sync.types import ENGINE_BACKENDS, Manifest, Rendezvous, Seconds

T = TypeVar("T")

for _backend in ENGINE_BACKENDS.values():
    with suppress(ValueError):  # it is registered
        WeightTransferEngineFactory.register_engine(_backend, Receiver)


class WorkerExtension:
    """Additional methods of vLLM's workers, for `collective_rpc`.

    A `TransferError` is returned as its text. With several workers vLLM turns any exception into a `RuntimeError`
    without reading the other workers' answers, which it then takes for those to its next call.
    """

    weight_transfer_engine: Any
    model_runner: Any
    init_weight_transfer_engine: Callable[[dict[str, Any]], None]
    start_weight_update: Callable[[], None]
    update_weights: Callable[[dict[str, Any]], None]
    finish_weight_update: Callable[[], None]

    def join_transfer(self, rendezvous: Rendezvous, first_rank: int) -> str | None:
        """Join the group of a weight sync, where the engine's first worker has `first_rank`."""
        joining = {"rendezvous": rendezvous, "first_rank": first_rank}
        return _or_text(lambda: self.init_weight_transfer_engine(joining))

    def receive_update(self, manifest: Manifest, adapters: Sequence[str]) -> Seconds | str:
        """Receive all tensors of one weight sync, in vLLM's three calls, and serve them if they are the adapters of
        these policies. Returns the seconds by activity. Each worker ends its update here, whatever happens to the
        others."""

        def receive() -> Seconds:
            self.start_weight_update()
            self.update_weights({"manifest": manifest})
            self.finish_weight_update()
            if adapters:
                self.serve_received_adapters(adapters)
            spent: Seconds = self.weight_transfer_engine.seconds
            return spent

        return _or_text(receive)

    def serve_zero_adapters(self, policies: Sequence[str]) -> None:
        """Serve adapters of zeros, until the first weight sync."""
        serve_adapters(
            self.model_runner, policies, lambda manager, policy, place: manager.create_dummy_lora(place, 1, {})
        )

    def serve_received_adapters(self, policies: Sequence[str]) -> None:
        """Serve the received adapters from the next step on. vLLM removes all adapters when an update ends: call it
        after that."""

        def made(manager: Any, policy: str, place: int) -> LoRAModel:
            layers = self.weight_transfer_engine.received[policy]
            return LoRAModel(place, max(layer.rank for layer in layers.values()), layers)

        serve_adapters(self.model_runner, policies, made)


def _or_text(do: Callable[[], T]) -> T | str:
    try:
        return do()
    except TransferError as error:
        return str(error)
