"""The NVIDIA GPUs of this machine, asked of the driver's own library (NVML), without torch and without CUDA.

NVML is what nvidia-smi, Ray and vLLM ask. It answers where `/proc/driver/nvidia` is missing (WSL 2, gVisor), and inside
containers, where it lists only the GPUs that were passed in. A process that has asked NVML can still fork.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"
VISIBLE = "CUDA_VISIBLE_DEVICES"
TEXT_BYTES = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: `index` is the driver's, `bytes` its memory."""

    index: int
    uuid: str
    name: str
    bytes: int


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def present_gpus(library: str = LIBRARY) -> tuple[Gpu, ...]:
    """All GPUs that the driver knows, in its order; none without a driver."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return ()
    if nvml.nvmlInit_v2() != 0:
        return ()
    try:
        count = ctypes.c_uint()
        found = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        return tuple(_gpu(nvml, index) for index in range(count.value if found else 0))
    finally:
        nvml.nvmlShutdown()


def visible_gpus(present: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows to a process with this `CUDA_VISIBLE_DEVICES`, in its order.

    As CUDA reads it: a number is an index, `GPU-…` the beginning of a UUID, and whatever follows the first name that is
    no GPU is hidden. A part of a GPU (`MIG-…`) counts as the whole.
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
    """The GPUs that this process may use."""
    visible = os.environ.get(VISIBLE)
    return () if visible in ("", "-1") else visible_gpus(present_gpus(), visible)


def _named(present: Sequence[Gpu], name: str) -> Gpu | None:
    if name.isdecimal():
        return present[int(name)] if int(name) < len(present) else None
    if name.startswith("MIG-"):
        return Gpu(index=-1, uuid=name, name="MIG", bytes=0)
    alike = [gpu for gpu in present if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return alike[0] if len(alike) == 1 else None


def _gpu(nvml: ctypes.CDLL, index: int) -> Gpu:
    handle, memory = ctypes.c_void_p(), _Memory()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID, handle),
        name=_text(nvml.nvmlDeviceGetName, handle),
        bytes=memory.total,
    )


def _text(ask: ctypes._NamedFuncPointer, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(TEXT_BYTES)
    ask(handle, text, TEXT_BYTES)
    return text.value.decode()
