"""Check that driver, PyTorch and Ray agree about the GPUs, before anything is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlhf.apps.gpu_checks.machine import GIB, Finding, GpuMachine
from rlhf.cluster.machine import nvidia_driver, this_machine, this_machines_gpus
from rlhf.errors import PlacementError

FREE_SHARE = 0.9
"""Least share of a GPU's memory that must be free."""


def gpus_agree(machine: GpuMachine) -> Finding:
    """Check that the driver, torch, this project's placement and Ray see the same GPUs."""
    with _driver() as (nvml, gpus):
        driver = {uuid: tuple(nvml.nvmlDeviceGetCudaComputeCapability(gpu)) for uuid, gpu in gpus.items()}
    of_torch = seen_by_torch()
    counts = {"driver": len(driver), "torch": len(of_torch), "placement": int(this_machine().gpus)}
    counts["ray"] = counted_by_ray()
    same = driver == of_torch
    return Finding(
        good=same and len(set(counts.values())) == 1,
        expected="one number, the same UUIDs and capabilities",
        found=", ".join(f"{part} {count}" for part, count in counts.items())
        + ("" if same else f"; driver {driver}, torch {of_torch}"),
        figures={**counts, "cards": ", ".join(gpu.name for gpu in this_machines_gpus())},
    )


def seen_by_torch() -> dict[str, tuple[int, int]]:
    """List the compute capability of each GPU that torch sees, by UUID."""
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {f"GPU-{str(gpu.uuid).removeprefix('GPU-')}": (gpu.major, gpu.minor) for gpu in found}


def counted_by_ray() -> int:
    """Count the GPUs that a new local Ray finds."""
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return int(resources.get("GPU", 0))
    finally:
        ray.shutdown()


def driver_serves_torch(machine: GpuMachine) -> Finding:
    """Check that the driver's CUDA has at least the major version that torch was built for."""
    with _driver() as (nvml, _):
        number, version = nvml.nvmlSystemGetCudaDriverVersion(), nvml.nvmlSystemGetDriverVersion()
    major, minor = number // 1000, number % 1000 // 10
    built = torch.version.cuda
    return Finding(
        good=built is not None and major >= int(built.partition(".")[0]),
        expected="a driver of torch's CUDA or newer, and a CUDA build of torch",
        found=f"driver {version} of CUDA {major}.{minor}, torch for {built or 'CPUs'}",
    )


def gpus_are_free(machine: GpuMachine) -> Finding:
    """Check that the GPUs run no other process, have free memory, and that MIG is off, which has no NCCL peers."""
    others: set[int] = set()
    least, smallest, parts = 1.0, float("inf"), []
    with _driver() as (nvml, gpus):
        for uuid, gpu in gpus.items():
            others |= {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)} - {os.getpid()}
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            least, smallest = min(least, memory.free / memory.total), min(smallest, memory.total / GIB)
            parts += [uuid] if _has_mig(nvml, gpu) else []
    return Finding(
        good=not others and least >= FREE_SHARE and not parts,
        expected=f"no other process, {FREE_SHARE:.0%} of the memory free, no MIG",
        found=f"processes {sorted(others) or 'none'}, least free {least:.0%}, MIG on {parts or 'none'}",
        figures={"least_free_share": least, "total_gib": smallest},
    )


@contextmanager
def _driver() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open NVML and, by UUID, every GPU that this process may see. Raises `PlacementError` without a driver."""
    with nvidia_driver() as nvml:
        if nvml is None:
            raise PlacementError("this machine has no NVIDIA driver")
        visible = (gpu for gpu in this_machines_gpus() if gpu.index >= 0)
        yield nvml, {gpu.uuid: nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in visible}


def _has_mig(nvml: Any, gpu: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(gpu)[0])
    except nvml.NVMLError:
        return False  # a card that has no MIG
