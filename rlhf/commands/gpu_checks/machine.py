"""What a check gets to work with: the GPUs, the folder, the model, sizes, and a way to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf.commands.gpu_checks.device import Device
from rlhf.commands.gpu_checks.nvml import Driver
from rlhf.models.config import TinyModelConfig

DEEP = TinyModelConfig(hidden_size=1024, intermediate_size=4864, layers=24, heads=16, kv_heads=2)
"""Nearly the shape of Qwen2.5-0.5B, whose 14 heads four GPUs cannot share."""
DEEP_VOCABULARY = 151_936


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much a check computes: a GPU's by default, a stand-in's are small."""

    matrix: int = 8192
    """Rows and columns of the matrices that are multiplied."""
    copied_mb: int = 1024
    """Memory that is copied to measure a bandwidth."""
    attended: int = 2048
    """Tokens of the sequence on which attention is compared."""
    rounds: int = 100
    """Pairs of a small and a large tensor that are sent over several streams."""
    shape: TinyModelConfig = DEEP
    vocabulary: int = DEEP_VOCABULARY
    learned_tokens: int = 4096
    """Tokens of the learner's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How `rlhf train` ended: its exit code, the last line that it said, and what it left in the run folder."""

    code: int
    said: str
    summary: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]


class Train(Protocol):
    """Trains the checks' recipe."""

    def __call__(
        self, name: str, overrides: Sequence[str], seconds: float, *, resume: bool = False, victim: str = ""
    ) -> RunEnd:
        """Train with these overrides in the run folder called `name`, for at most `seconds`. The worker `victim` is
        killed after the first update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMachine:
    """The machine under test. `gpus` are those that may be used on each of its `nodes`; `planned` and `by_ray` are what
    this project's placement and Ray count (None where Ray is not installed). `folder` is shared by all checks of a
    report, and `model` is the hub name or folder that `--model` gave."""

    device: Device
    driver: Driver
    gpus: int
    nodes: int
    planned: int
    by_ray: int | None
    visible: str | None
    """`CUDA_VISIBLE_DEVICES`."""
    folder: Path
    model: str | None
    sizes: Sizes
    train: Train
