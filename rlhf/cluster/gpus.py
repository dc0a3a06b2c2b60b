"""List the NVIDIA GPUs of this machine as the driver's library (NVML) names them, without torch and without CUDA.

NVML is what nvidia-smi, Ray and vLLM ask. It answers where `/proc/driver/nvidia` is missing (WSL 2, gVisor), and inside
containers, where it lists only the GPUs that were passed in. A process that has asked NVML can still fork.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: `index` is the driver's, `bytes` its memory."""

    index: int
    uuid: str
    name: str
    bytes: int


@contextmanager
def nvidia_driver() -> Iterator[Any | None]:
    """Open NVML, as the module `pynvml`. None on a machine without NVIDIA's driver, and where rlhf is installed without
    the packages of `requirements/`."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def present_gpus() -> tuple[Gpu, ...]:
    """List all GPUs that the driver knows, in its order; none without a driver."""
    with nvidia_driver() as nvml:
        return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())) if nvml else ()


def visible_gpus(present: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """List the GPUs that CUDA shows to a process with this `CUDA_VISIBLE_DEVICES`, in its order.

    As CUDA reads it: a number is an index, `GPU-…` the beginning of a UUID, and all that follows the first name without
    a GPU is hidden. A part of a GPU (`MIG-…`) counts as the whole.
    """
    if visible is None:
        return tuple(present)
    shown: list[Gpu] = []
    for name in map(str.strip, visible.split(",")):
        gpu = _named(present, name)
        if gpu is None:
            break
        shown.append(gpu)
    return tuple(shown)


def this_machines_gpus() -> tuple[Gpu, ...]:
    """List the GPUs that this process may use."""
    visible = os.environ.get(VISIBLE)
    return () if visible in ("", "-1") else visible_gpus(present_gpus(), visible)


def _named(present: Sequence[Gpu], name: str) -> Gpu | None:
    if name.isdecimal():
        return present[int(name)] if int(name) < len(present) else None
    if name.startswith("MIG-"):
        return Gpu(index=-1, uuid=name, name="MIG", bytes=0)
    alike = [gpu for gpu in present if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return alike[0] if len(alike) == 1 else None


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
    )
