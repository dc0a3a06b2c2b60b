"""What runs in the processes of a weight sync over IPC: in a rank's, and in an engine's."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rlhf.cluster.host import MethodResult, WorkerHost, value_of
from rlhf.weight_sync import weights
from rlhf.weight_sync.perturbation import add_noise
from rlhf.weight_sync.types import Manifest
from tests.warm.calls import WarmCalls
from tests.weight_sync.shared_files import stand_on_gpu

FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
         "up_proj": "gate_up_proj"}  # fmt: skip
"""In which of vLLM's parameters a tensor lies, below those that come before it."""

_host = WorkerHost("rlhf.rollout.vllm.engine_worker:EngineWorker", concurrency=2)


class EngineProcess:
    """A `Worker` that is a vLLM engine in a process of its own, on a GPU that is not there."""

    def __init__(self, name: str, gpu: str, memory: Path, settings: Mapping[str, Any]) -> None:
        self.name, self.process = name, WarmCalls()
        self.process.submit(make_engine, name, gpu, memory, settings).result(60)

    async def call(self, method: str, *arguments: Any, timeout_seconds: float, **named: Any) -> Any:
        future = self.process.submit(ask_engine, method, arguments, named)
        return value_of(self.name, method, await asyncio.wait_for(asyncio.wrap_future(future), timeout_seconds))

    def digests(self, manifest: Manifest) -> dict[str, str]:
        found: dict[str, str] = self.process.submit(held_digests, manifest).result(60)
        return found


def make_engine(name: str, gpu: str, memory: Path, settings: Mapping[str, Any]) -> None:
    """In the engine's process. Without oneDNN vLLM multiplies by the weights themselves, and not by a packed copy that
    nobody can read."""
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
    stand_on_gpu(gpu, memory, device=0)
    asyncio.run(_host.construct({"name": name, "settings": settings}))


def ask_engine(method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> MethodResult:
    """In the engine's process."""
    return asyncio.run(_host.call(method, arguments, named))


def held_digests(manifest: Manifest) -> dict[str, str]:
    """In the engine's process: of what its model holds, by the names of the manifest."""
    look = partial(_digests_in, manifest=manifest)
    found: dict[str, str] = _host._target._thread.run(
        lambda engine: engine._engine.apply_model(look)[0], awaited="digests", timeout_seconds=60
    )
    return found


def _digests_in(model: nn.Module, manifest: Manifest) -> dict[str, str]:
    held, filled, found = dict(model.named_parameters()), Counter[str](), {}
    for spec in manifest.tensors:
        *path, layer, kind = spec.name.split(".")
        name = ".".join((*path, FUSED.get(layer, layer), kind))
        found[spec.name] = digest(held[name][filled[name] : filled[name] + spec.shape[0]])
        filled[name] += spec.shape[0]
    return found


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def mark(model: nn.Module, seed: int) -> None:
    """Change every weight, by noise that nobody else's has."""
    for name, weight in model.named_parameters():
        add_noise(name, weight.data, seed=seed)


def mark_rank(rank: Any, seed: int) -> None:
    """In a rank's process."""
    mark(rank.policy.model, seed)


def rank_on_gpu(rank: Any, gpu: str, memory: Path) -> None:
    """In a rank's process."""
    stand_on_gpu(gpu, memory)


def spoil(rank: Any, name: str, shortened: bool) -> None:
    """In a rank's process: it gathers the tensor called `name` without its last row, or not at all."""
    gathered: Callable[..., Iterator[tuple[str, Tensor]]] = weights.published_tensors

    def spoiled(*arguments: Any, **more: Any) -> Iterator[tuple[str, Tensor]]:
        for named, tensor in gathered(*arguments, **more):
            if named != name:
                yield named, tensor
            elif shortened:
                yield named, tensor[:-1]

    weights.published_tensors = spoiled
