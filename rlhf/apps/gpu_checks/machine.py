"""The argument and the result of a check: the machine, and a finding."""

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
    """A check's expectation and result, in a few words each. `figures` are measurements, named with their units."""

    good: bool
    expected: str
    found: str
    figures: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the computations, for a GPU: rows and columns of a `matrix`, MiB that are copied, tokens of a sequence
    that is attended, and the made model's shape. Tests on a CPU use smaller ones."""

    matrix: int = 8192
    copied_mb: int = 1024
    attended: int = 2048
    shape: TinyModelConfig = DEEP
    vocabulary: int = 151_936


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMachine:
    """The machine under test, with `gpus` on each of its `nodes`. Each check has a `folder`, and all checks of a report
    have `shared`; `model` is the value of `--model`. Tests use a CPU as `device`, and `overrides` of every recipe."""

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

    def mean_seconds(self, work: Callable[[], object], repeats: int = 10) -> float:
        """Time `work` until the device is idle, after one call that is not counted."""
        wait: Callable[[], None] = torch.cuda.synchronize if self.on_gpu else lambda: None
        work()
        wait()
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        wait()
        return max((time.perf_counter() - started) / repeats, 1e-9)

    def random(self, seed: int, *shape: int) -> torch.Tensor:
        """Draw the same normal numbers on every machine, in float32."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device)
