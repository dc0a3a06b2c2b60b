"""What a check gets, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rlhf.models.config import TinyModelConfig

GIB = 2**30
DEEP = TinyModelConfig(hidden_size=1024, intermediate_size=4864, layers=24, heads=16, kv_heads=2)
"""Nearly the shape of Qwen2.5-0.5B, whose 14 heads four GPUs cannot share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check expected and found, in a few words each. `figures` are its measurements, units in their names."""

    good: bool
    expected: str
    found: str
    figures: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much a check computes: a GPU's by default; the tests on a CPU use smaller ones."""

    matrix: int = 8192
    """Rows and columns of the matrices that are multiplied."""
    copied_mb: int = 1024
    """Memory that is copied to measure a bandwidth."""
    attended: int = 2048
    """Tokens of the sequence on which attention is compared."""
    shape: TinyModelConfig = DEEP
    vocabulary: int = 151_936


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMachine:
    """The machine under test, with `gpus` on each of its `nodes`. `folder` is the check's own, `shared` that of all
    checks of a report; `model` is the hub name or folder that `--model` gave. `device` is a CPU in the tests, which
    also add `overrides` to the recipe of every run."""

    gpus: int
    nodes: int
    folder: Path
    shared: Path
    model: str | None = None
    device: str = "cuda:0"
    sizes: Sizes = field(default_factory=Sizes)
    overrides: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def synchronise(self) -> None:
        """Wait for all work that was started on the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """Time one call of `work`."""
        self.synchronise()
        started = time.perf_counter()
        work()
        self.synchronise()
        return time.perf_counter() - started

    def mean_seconds(self, work: Callable[[], object], repeats: int = 10) -> float:
        """Time `work`, after one call that is not counted."""
        work()
        return max(self.seconds(lambda: [work() for _ in range(repeats)]) / repeats, 1e-9)

    def random(self, seed: int, *shape: int) -> torch.Tensor:
        """Draw the same normal numbers on every machine, in float32."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device)
