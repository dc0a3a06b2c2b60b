"""Detect the cores and GPUs of this machine, without importing torch and without CUDA.

NVIDIA's driver library (NVML) names the GPUs, as for nvidia-smi, Ray and vLLM. It answers where `/proc/driver/nvidia`
is missing (WSL 2, gVisor), and inside containers, where it lists only the GPUs that were passed in. A process that has
asked NVML can still fork.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rlhf.cluster.roles import Resources

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVERS_OWN = 2**30
"""Bytes of a GPU that the driver may hold itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: `index` is the driver's, `bytes` its memory, of which others hold `held`; `holders` names them."""

    index: int
    uuid: str
    name: str
    bytes: int
    held: int = 0
    holders: str = ""


def this_machine(name: str = "this machine") -> Resources:
    """Return the cores that this process may use and the GPUs that it may see."""
    cores = max(1, math.floor(min(len(os.sched_getaffinity(0)), cpu_quota())))
    return Resources(node=name, cpus=float(cores), gpus=float(len(this_machines_gpus())))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the cores' worth of time that this process's control groups allow, as containers and batch systems limit
    it; infinity without a limit. A container sees its own group as the top one."""
    quotas = [math.inf]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):  # version 2 names none
            top, group = root / "sys/fs/cgroup" / ("cpu" if controllers else ""), Path(path.lstrip("/"))
            quotas += [_quota_of(top / above) for above in (group, *group.parents)]
    return min(quotas)


def _quota_of(group: Path) -> float:
    first_version = [*_lines(group / "cpu.cfs_quota_us"), *_lines(group / "cpu.cfs_period_us")]
    words = " ".join(first_version or _lines(group / "cpu.max")).split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdecimal() else math.inf


def _lines(file: Path) -> list[str]:
    """Return the lines of a file; none if it is not there."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def this_machines_gpus() -> tuple[Gpu, ...]:
    """List the GPUs that this process may use."""
    visible = os.environ.get(VISIBLE)
    return () if visible in ("", "-1") else visible_gpus(present_gpus(), visible)


@contextmanager
def nvidia_driver() -> Iterator[Any | None]:
    """Open NVML, as the module `pynvml`; None without NVIDIA's driver or without the packages of `requirements/`."""
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
        named = [gpu for gpu in present if name == str(gpu.index) or (name[:4] == "GPU-" and gpu.uuid.startswith(name))]
        if name.startswith("MIG-"):
            named = [Gpu(index=-1, uuid=name, name="MIG", bytes=0)]
        if len(named) != 1:
            break
        shown += named
    return tuple(shown)


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        bytes=memory.total,
        held=max(memory.total - memory.free - DRIVERS_OWN, 0),
        holders=", ".join(_process(one.pid) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def _process(pid: int) -> str:
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:  # of another container
        return f"process {pid}"
