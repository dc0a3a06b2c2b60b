"""What NVIDIA's driver says of its GPUs beyond what a placement needs, by its management library and ctypes.

NVML API reference: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

from rlhf.cluster.gpus import LIBRARY, Gpu, visible_gpus

SUCCESS, TEXT_BYTES, MOST_PROCESSES = 0, 96, 64
GIB = 2**30


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("instance", c_uint), ("compute_instance", c_uint))


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU as the driver sees it. `partitioned` is whether MIG is on; `processes` are the ids of those that compute
    on it."""

    uuid: str
    name: str
    capability: tuple[int, int]
    total_gib: float
    free_gib: float
    partitioned: bool
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver, the newest CUDA that it serves as (major, minor), and all its GPUs in its order."""

    version: str
    cuda: tuple[int, int]
    gpus: tuple[NvmlGpu, ...]


def nvml_library() -> Any | None:
    """The library, initialised; None on a machine without NVIDIA's driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == SUCCESS else None


def gpu_count(library: Any) -> int:
    """GPUs that the driver has."""
    count = c_uint()
    return count.value if library.nvmlDeviceGetCount_v2(byref(count)) == SUCCESS else 0


def driver_of(library: Any) -> Driver:
    """Everything that the checks compare."""
    cuda = c_int()
    library.nvmlSystemGetCudaDriverVersion_v2(byref(cuda))
    return Driver(
        version=_text(library.nvmlSystemGetDriverVersion),
        cuda=(cuda.value // 1000, cuda.value % 1000 // 10),
        gpus=tuple(_gpus(library)),
    )


def shown_gpus(driver: Driver, visible: str | None) -> list[NvmlGpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves."""
    by_uuid = {gpu.uuid: gpu for gpu in driver.gpus}
    present = [
        Gpu(index=index, uuid=gpu.uuid, name=gpu.name, bytes=int(gpu.total_gib * GIB))
        for index, gpu in enumerate(driver.gpus)
    ]
    return [by_uuid[gpu.uuid] for gpu in visible_gpus(present, visible) if gpu.uuid in by_uuid]


def _gpus(library: Any) -> Iterator[NvmlGpu]:
    for index in range(gpu_count(library)):
        handle = c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle)) != SUCCESS:
            continue
        memory, major, minor, mode, pending = _Memory(), c_int(), c_int(), c_uint(), c_uint()
        library.nvmlDeviceGetMemoryInfo(handle, byref(memory))
        library.nvmlDeviceGetCudaComputeCapability(handle, byref(major), byref(minor))
        library.nvmlDeviceGetMigMode(handle, byref(mode), byref(pending))  # on a card without MIG the mode stays 0
        yield NvmlGpu(
            uuid=_text(library.nvmlDeviceGetUUID, handle),
            name=_text(library.nvmlDeviceGetName, handle),
            capability=(major.value, minor.value),
            total_gib=memory.total / GIB,
            free_gib=memory.free / GIB,
            partitioned=mode.value == 1,
            processes=_processes(library, handle),
        )


def _text(function: Any, *handle: Any) -> str:
    text = (c_char * TEXT_BYTES)()
    return text.value.decode() if function(*handle, text, c_uint(TEXT_BYTES)) == SUCCESS else ""


def _processes(library: Any, handle: Any) -> tuple[int, ...]:
    count, found = c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
    if library.nvmlDeviceGetComputeRunningProcesses_v3(handle, byref(count), found) != SUCCESS:
        return ()
    return tuple(one.pid for one in found[: count.value])
