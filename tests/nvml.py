"""A stand-in for the module `pynvml` on a machine without NVIDIA's driver."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

GIB = 2**30


class NoDriverError(Exception):
    """NVML without a driver."""


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA X1"
    total: int = 80 * GIB
    free: int = 79 * GIB
    mig: bool = False
    processes: tuple[int, ...] = ()


@dataclass
class FakeNvml:
    """The functions of `pynvml` that the package calls; a GPU is its own handle."""

    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu("GPU-1111"), FakeGpu("GPU-2222")])
    cuda: int = 13040
    loads: bool = True
    opened: int = 0

    NVMLError = NoDriverError

    def nvmlInit(self) -> None:
        if not self.loads:
            raise NoDriverError
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self.cuda

    def nvmlSystemGetDriverVersion(self) -> str:
        return "610.12"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.total, free=gpu.free)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if gpu.name == "no MIG":
            raise NoDriverError
        return int(gpu.mig), 0

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in gpu.processes]


def install_nvml(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    """Put the stand-in in the place of `pynvml`."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml
