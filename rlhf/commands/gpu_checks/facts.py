"""Checks of what the parts say of the machine: they must agree before anything is worth measuring."""

from __future__ import annotations

import os
import resource
import shutil
from importlib import metadata

from rlhf.commands.doctor import GIB, VLLM_BUILDS, installed, required_torch
from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.machine import GpuMachine
from rlhf.commands.gpu_checks.nvml import shown_gpus

FREE_SHARE = 0.9
"""Least share of a GPU's memory that must be free."""
SHARED_MEMORY_GIB = 1.0


def gpus_agree(machine: GpuMachine) -> Finding:
    """The driver, torch, this project's placement and Ray count the same GPUs, and torch sees the same cards."""
    driver = [(gpu.uuid, gpu.capability) for gpu in shown_gpus(machine.driver, machine.visible)]
    torch = machine.device.seen()
    counts = {"driver": len(driver), "torch": len(torch), "placement": machine.planned}
    if machine.by_ray is not None:
        # Ray counts what the driver has, and hides what CUDA_VISIBLE_DEVICES hides when it starts.
        counts["ray"] = min(machine.by_ray, len(driver))
    same = sorted(driver) == sorted(torch)
    told = ", ".join(f"{who} {count}" for who, count in counts.items())
    return Finding(
        good=same and len(set(counts.values())) == 1,
        expected="one number, the same UUIDs and capabilities",
        found=told + ("" if same else f"; driver {driver}, torch {torch}"),
        figures={**counts, "cards": ", ".join(gpu.name for gpu in machine.driver.gpus)},
    )


def driver_serves_torch(machine: GpuMachine) -> Finding:
    """The driver is of the CUDA that torch was built for, or newer of the same major version (minor-version
    compatibility)."""
    driver, built = machine.driver.cuda, machine.device.built_for()
    return Finding(
        good=built != (0, 0) and driver[0] >= built[0],
        expected="a driver of torch's CUDA or newer, and a CUDA build of torch",
        found=f"driver {machine.driver.version} of CUDA {_dotted(driver)}, torch for {_dotted(built)}",
    )


def gpus_are_free(machine: GpuMachine) -> Finding:
    """Nothing else computes on the GPUs, their memory is free, and MIG is off (a part of a card has no NCCL peers)."""
    seen = shown_gpus(machine.driver, machine.visible)
    others = sorted({pid for gpu in seen for pid in gpu.processes if pid != os.getpid()})
    least = min((gpu.free_gib / gpu.total_gib for gpu in seen), default=0.0)
    parts = [gpu.name for gpu in seen if gpu.partitioned]
    return Finding(
        good=not others and least >= FREE_SHARE and not parts,
        expected=f"no other process, {FREE_SHARE:.0%} of the memory free, no MIG",
        found=f"processes {others or 'none'}, least free {least:.0%}, MIG on {parts or 'none'}",
        figures={"least_free_share": least, "total_gib": min((gpu.total_gib for gpu in seen), default=0.0)},
    )


def host_limits(machine: GpuMachine) -> Finding:
    """`/dev/shm` has room for Ray and NCCL, and between nodes memory may be locked, as RDMA does."""
    shared = shutil.disk_usage("/dev/shm").free / GIB
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = locked == resource.RLIM_INFINITY
    told = "unlimited" if unlimited else f"{locked / 2**20:.0f} MiB"
    return Finding(
        good=shared >= SHARED_MEMORY_GIB and (unlimited or machine.nodes == 1),
        expected=f"/dev/shm {SHARED_MEMORY_GIB:g} GiB free" + ("" if machine.nodes == 1 else ", ulimit -l unlimited"),
        found=f"/dev/shm {shared:.1f} GiB free, ulimit -l {told}",
        figures={"shm_free_gib": shared, "memlock": told},
    )


def packages_fit(machine: GpuMachine) -> Finding:
    """vLLM, where it is installed, is a build for this torch; versions are written down."""
    torch = metadata.version("torch")
    asked = {name: required_torch(name) for name in VLLM_BUILDS if installed(name)}
    wrong = {name: version for name, version in asked.items() if version and version != torch.partition("+")[0]}
    found = {name: installed(name) for name in ("transformers", "accelerate", "deepspeed", "ray", "vllm")}
    return Finding(
        good=not wrong,
        expected="vLLM built for the torch that is here",
        found=f"torch {torch}" + "".join(f", {name} is for torch {version}" for name, version in wrong.items()),
        figures={"torch": torch} | {name: version or "not installed" for name, version in found.items()},
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
