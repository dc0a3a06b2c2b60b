"""The canary: a few fixed sequences whose log-probs tell whether an engine holds the learner's weights. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRILL_FACTOR = 4
"""Tolerances allowed in the drill: perturbed weights amplify rounding (0.09 in bfloat16 at 24 layers), and an engine in
which a kind of tensor stayed behind is off by 12 or more."""
MOVED_FACTOR = 3
"""Tolerances by which the learner's canary must have moved before an engine's has to have moved too."""

Scores = Sequence[NDArray[np.float32]]
"""Log-probs of every canary sequence, each `float32 [T - 1]`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Canary:
    """Sequences `int32 [T]` and the largest difference of their log-probs, in nats, that rounding explains."""

    sequences: tuple[NDArray[np.int32], ...]
    tolerance: float


def canary(vocab_size: int, context_tokens: int, tolerance: float, *, seed: int = 0, count: int = 4) -> Canary:
    """`count` sequences of 24 tokens (fewer where the context is shorter), uniform over the vocabulary."""
    tokens = np.random.default_rng(seed).integers(0, vocab_size, (count, min(24, context_tokens)), dtype=np.int32)
    return Canary(sequences=tuple(tokens), tolerance=tolerance)


def tolerance_for(dtype: str) -> float:
    """Nats. Engine and learner agree to about 1e-6 in float32 and 2e-2 in 16 bits: the tolerance is far above the one
    and five times the other."""
    return 1e-4 if dtype == "float32" else 0.1


def difference(one: Scores, other: Scores) -> float:
    """Largest absolute difference, in nats; infinite where a number is not one."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.concatenate(one).astype(np.float64) - np.concatenate(other))
    return float(gap.max()) if np.isfinite(gap).all() else float("inf")


def disagreement(engine: Scores, learner: Scores, tolerance: float) -> str | None:
    """Why these are not the log-probs of the same weights, or None."""
    gap = difference(engine, learner)
    if gap <= tolerance:
        return None
    return f"its canary log-probs differ from the learner's by {gap:.3g}, tolerance {tolerance:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """The canary's log-probs at the first real publish."""

    learner: Scores
    engines: dict[str, Scores]


def staleness(
    engine: Scores, engine_start: Scores, learner: Scores, learner_start: Scores, tolerance: float
) -> str | None:
    """Why the engine seems to serve its first weights, or None."""
    learner_moved, engine_moved = difference(learner, learner_start), difference(engine, engine_start)
    if learner_moved <= MOVED_FACTOR * tolerance or engine_moved > tolerance:
        return None
    return (
        f"it is stale: since the start the learner's canary log-probs moved by {learner_moved:.3g}, "
        f"its own by {engine_moved:.3g}"
    )
