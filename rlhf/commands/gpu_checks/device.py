"""The device that a check computes on: a CUDA GPU here, CPU tensors in the tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class Device(Protocol):
    """What checks need of a device besides torch's own operators."""

    place: str
    """torch's name of it, `cuda:0`."""
    backend: str
    """The backend of its collectives."""

    def seen(self) -> list[tuple[str, tuple[int, int]]]:
        """UUID and compute capability of every device that torch sees, in torch's order."""

    def built_for(self) -> tuple[int, int]:
        """The CUDA that torch was built for; (0, 0) without one."""

    def synchronise(self) -> None:
        """Wait for all that was started on it."""

    def restart_peak(self) -> None:
        """Measure the peak of memory from here on."""

    def peak_bytes(self) -> int:
        """Largest memory of tensors at once since then."""

    def pinned(self, tensor: Tensor) -> Tensor:
        """A copy in host memory from which the device reads directly."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as `torch.compile` makes it."""

    def on_streams(self, count: int) -> Sequence[AbstractContextManager[Any]]:
        """Contexts in which work goes to streams of its own, each behind all that the default stream has."""


class CudaDevice:
    """The first GPU that this process sees."""

    place, backend = "cuda:0", "nccl"

    def seen(self) -> list[tuple[str, tuple[int, int]]]:
        found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [(f"GPU-{str(one.uuid).removeprefix('GPU-')}", (one.major, one.minor)) for one in found]

    def built_for(self) -> tuple[int, int]:
        major, _, minor = (torch.version.cuda or "0.0").partition(".")
        return int(major), int(minor)

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def restart_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated()

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function)
        return compiled

    def on_streams(self, count: int) -> Sequence[AbstractContextManager[Any]]:
        streams: list[torch.cuda.Stream] = [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        return [torch.cuda.stream(stream) for stream in streams]


def mean_seconds(device: Device, work: Callable[[], object], repeats: int) -> float:
    """Mean seconds of `work`, after one call that is not counted."""
    work()
    device.synchronise()
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    device.synchronise()
    return max((time.perf_counter() - started) / repeats, 1e-9)
