"""A machine with GPUs that are not there: a driver's library in Python, CPU tensors, and runs that were recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rlhf.commands.gpu_checks.machine import GpuMachine, RunEnd, Sizes
from rlhf.commands.gpu_checks.nvml import driver_of
from rlhf.models.config import TinyModelConfig

GIB = 2**30
SMALL = Sizes(
    matrix=64,
    copied_mb=1,
    attended=64,
    rounds=3,
    shape=TinyModelConfig(hidden_size=128, intermediate_size=128, layers=2, heads=4),
    vocabulary=512,
    learned_tokens=64,
)


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA X1"
    total: int = 80 * GIB
    free: int = 79 * GIB
    partitioned: bool = False
    processes: tuple[int, ...] = ()


@dataclass
class FakeNvml:
    """libnvidia-ml's functions, called as ctypes calls them."""

    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu("GPU-1111"), FakeGpu("GPU-2222")])
    cuda: int = 13040

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = self.cuda
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        text.value = b"610.12"
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        gpu = self._of(handle)
        memory._obj.total, memory._obj.free = gpu.total, gpu.free
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0

    def nvmlDeviceGetMigMode(self, handle: Any, mode: Any, pending: Any) -> int:
        mode._obj.value = int(self._of(handle).partitioned)
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        text.value = self._of(handle).uuid.encode()
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        text.value = self._of(handle).name.encode()
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, found: Any) -> int:
        processes = self._of(handle).processes
        for place, pid in enumerate(processes):
            found[place].pid = pid
        count._obj.value = len(processes)
        return 0

    def _of(self, handle: Any) -> FakeGpu:
        return self.gpus[handle.value - 1]


@dataclass
class CpuDevice:
    """CPU tensors in place of CUDA."""

    place = "cpu"
    backend = "gloo"
    uuids: tuple[str, ...] = ("GPU-1111", "GPU-2222")
    cuda: tuple[int, int] = (13, 0)

    def seen(self) -> list[tuple[str, tuple[int, int]]]:
        return [(uuid, (9, 0)) for uuid in self.uuids]

    def built_for(self) -> tuple[int, int]:
        return self.cuda

    def synchronise(self) -> None: ...

    def restart_peak(self) -> None: ...

    def peak_bytes(self) -> int:
        return GIB

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function, backend="eager")
        return compiled

    def on_streams(self, count: int) -> Sequence[AbstractContextManager[Any]]:
        return [nullcontext()] * count


@dataclass
class Recorded:
    """Runs that end as told: of `ends` by run folder, or else as a run that is well."""

    ends: Mapping[str, RunEnd] = field(default_factory=dict)
    asked: list[tuple[str, tuple[str, ...], bool]] = field(default_factory=list)

    def __call__(
        self, name: str, overrides: Sequence[str], seconds: float, *, resume: bool = False, victim: str = ""
    ) -> RunEnd:
        self.asked.append((name, tuple(overrides), resume))
        killed = RunEnd(code=1, said=f"error: {victim} died: killed by SIGKILL", summary={}, metrics=[])
        return self.ends.get(name) or (killed if victim else run_that_is_well(overrides))


def run_that_is_well(overrides: Sequence[str], **changed: Any) -> RunEnd:
    updates = next((int(one.partition("=")[2]) for one in overrides if one.startswith("trainer.updates=")), 2)
    metrics = [
        {"weight_sync/logprob_difference": 0.1, "seconds/weight_sync": 1.0, "seconds/update": 3.0, "sft/nll": 5.0,
         "reward/mean": 0.3 + update / 20} | changed
        for update in range(updates)
    ]  # fmt: skip
    return RunEnd(code=0, said="done", summary={"outcome": "finished", "updates": updates}, metrics=metrics)


def stand_in(folder: Path, nvml: FakeNvml | None = None, **changed: Any) -> GpuMachine:
    """A machine of two GPUs on which every check is well."""
    values: dict[str, Any] = {
        "device": CpuDevice(),
        "driver": driver_of(nvml or FakeNvml()),
        "gpus": 2,
        "nodes": 1,
        "planned": 2,
        "by_ray": 2,
        "visible": None,
        "folder": folder,
        "model": None,
        "sizes": SMALL,
        "train": Recorded(),
    }
    return GpuMachine(**values | changed)
