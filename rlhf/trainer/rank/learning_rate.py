"""The learning-rate schedule: linear warm-up, then a constant rate or a decay."""

from __future__ import annotations

import math


def learning_rate_factor(step: int, *, schedule: str, warmup_steps: int, total_steps: int) -> float:
    """Return the share of the peak learning rate at optimizer step `step`, which counts from 0.

    A linear warm-up comes first, then `constant`, or a `linear` or `cosine` decay to zero at `total_steps`.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
