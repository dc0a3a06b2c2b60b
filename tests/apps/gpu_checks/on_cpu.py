"""The machine of the checks' tests: CPU tensors in place of a GPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf.apps.gpu_checks.machine import GpuMachine, Sizes
from rlhf.models.config import TinyModelConfig

SMALL = Sizes(
    matrix=64,
    copied_mb=1,
    attended=64,
    shape=TinyModelConfig(hidden_size=128, intermediate_size=128, layers=2, heads=4),
    vocabulary=512,
)


def cpu_machine(folder: Path, **changed: Any) -> GpuMachine:
    """A machine of two GPUs, whose tensors are on the CPU."""
    values = {"gpus": 2, "nodes": 1, "folder": folder, "shared": folder, "device": "cpu", "sizes": SMALL}
    return GpuMachine(**values | changed)
