"""Detects the cores and GPUs of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf.cluster.resources import Resources


def this_machine(name: str = "this machine") -> Resources:
    """The cores that this process may use and the GPUs that it may see, found without importing torch."""
    return Resources(node=name, cpus=float(len(os.sched_getaffinity(0))), gpus=float(_visible_gpus()))


def _visible_gpus() -> int:
    """NVIDIA's driver lists one folder per GPU; CUDA_VISIBLE_DEVICES may hide some (`-1` hides all that follow it)."""
    driver = Path("/proc/driver/nvidia/gpus")
    present = len(list(driver.iterdir())) if driver.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    named = [name.strip() for name in visible.split(",")]
    hidden_from = next((at for at, name in enumerate(named) if name in ("", "-1")), len(named))
    return min(present, hidden_from)
