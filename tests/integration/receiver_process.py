"""An engine's worker that is only its receiver: a process with vLLM's engine class around a model that remembers."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlhf.weight_sync.types import Manifest, Rendezvous, engine_backend


def serve(pipe: Connection, backend: str) -> None:
    """Answer `connect rendezvous` and `receive manifest` until it is killed; a failure is answered as its text."""
    receiver, model = made_receiver(backend)
    pipe.send("ready")
    while True:
        try:
            pipe.send(_obey(receiver, model, *pipe.recv()))
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the other side
            pipe.send(error.with_traceback(None))


def _obey(receiver: Any, model: Any, verb: str, argument: Rendezvous | Manifest) -> dict[str, np.ndarray]:
    if verb == "connect":
        receiver.init_transfer_engine(receiver.parse_init_info({"rendezvous": argument, "first_rank": 1}))
        return {}
    model.loaded.clear()
    receiver.start_weight_update()
    receiver.receive_weights(receiver.parse_update_info({"manifest": argument}))
    receiver.finish_weight_update()
    return dict(model.loaded)


def gpu_of(backend: str, gpus: int) -> int:
    """The receiver's GPU: nccl refuses two members on one, and ipc needs them on one. The sender is on the first."""
    return gpus - 1 if backend == "nccl" else 0


def made_receiver(backend: str) -> tuple[Any, Any]:
    import torch
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    import rlhf.weight_sync.vllm_worker  # noqa: F401 - it registers the receiver

    class Memory(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loaded: dict[str, np.ndarray] = {}

        def load_weights(self, weights: Any) -> set[str]:
            self.loaded |= {name: weight.float().cpu().numpy().copy() for name, weight in weights}
            return set(self.loaded)

    device = torch.device("cpu" if backend == "gloo" else f"cuda:{gpu_of(backend, torch.cuda.device_count())}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    parallel = SimpleNamespace(rank=0, world_size=1, data_parallel_index=0)
    config = SimpleNamespace(parallel_config=parallel, model_config=None, lora_config=None)
    transfer = WeightTransferConfig(backend=engine_backend(backend))
    model = Memory()
    return WeightTransferEngineFactory.create_engine(transfer, config, device, model), model


if __name__ == "__main__":
    serve(Connection(int(sys.argv[2])), sys.argv[1])
