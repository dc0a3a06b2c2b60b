"""Controllers of the KL coefficient, from update to update, and their state in a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlhf.errors import CheckpointError
from rlhf.trainer.config import KLConfig

FILE = "controller.json"


@dataclass(frozen=True, slots=True)
class FixedKL:
    """A constant KL coefficient."""

    coefficient: float

    def after(self, kl: float, samples: int) -> FixedKL:
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveKL:
    """A KL coefficient that follows a target KL (arXiv 1909.08593): each update multiplies it by `1 + clip(kl / target
    - 1, -0.2, 0.2) * samples / horizon`."""

    coefficient: float
    target: float
    """Target KL in nats, in the same unit as the `kl` given to `after` (per token, or per sequence)."""
    horizon: float
    """Number of samples in which the coefficient may change by a fifth."""

    def after(self, kl: float, samples: int) -> AdaptiveKL:
        """Return the controller of the next update, after `samples` samples with mean divergence `kl`."""
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return AdaptiveKL(self.coefficient * (1 + error * samples / self.horizon), self.target, self.horizon)


def kl_controller(config: KLConfig) -> FixedKL | AdaptiveKL:
    """Return the recipe's controller in its initial state."""
    if config.target is None:
        return FixedKL(config.coefficient)
    return AdaptiveKL(config.coefficient, config.target, config.horizon)


def write_controller(path: Path, coefficient: float) -> Path:
    """Write the coefficient; returns the file."""
    (path / FILE).write_text(json.dumps({"kl_coefficient": coefficient}))
    return path / FILE


def read_controller(path: Path) -> float:
    """Return the coefficient in a checkpoint. Raises `CheckpointError` when it has none."""
    try:
        return float(json.loads((path / FILE).read_text())["kl_coefficient"])
    except (FileNotFoundError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path / FILE} cannot be read ({error}); use another checkpoint") from None
