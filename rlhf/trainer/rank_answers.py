"""A rank's result of an update, and the reduction of all ranks' results. Numpy and plain numbers only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf.tracing import Sums, reduce
from rlhf.weight_sync.tolerance import LogprobTolerance

WEIGHT_MEAN, WEIGHT_SQUARED = "mismatch/weight_mean", "mismatch/weight_squared"
"""Means of the importance weights and of their squares over tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Engine and learner log-probs differ by more than `limits` allow: over `tokens` of all ranks by `mean` nats on
    average, and over a `share` of them by more than `limits.high`."""

    tokens: int
    mean: float
    share: float
    limits: LogprobTolerance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankAnswer:
    """One rank's result. `sums` are `(sum, count)` pairs and `maxima` largest values, over this rank's tokens; `steps`
    are values that are equal on all ranks, one per step. `places` `[A]`, `proximal_logprobs` and `entropies` `float32
    [A]` are from the first forward pass. With a `disagreement`, equal on all ranks, no step was taken."""

    sums: Sums
    maxima: Mapping[str, float]
    steps: Mapping[str, tuple[float, ...]]
    places: NDArray[np.int64]
    proximal_logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]
    disagreement: Disagreement | None = None


def reduce_metrics(answers: Iterable[RankAnswer]) -> dict[str, float]:
    """Means over all ranks' tokens, largest values, the mean over steps of per-step values, and the number of steps."""
    answers = list(answers)
    metrics = reduce(answer.sums for answer in answers)
    for name in {name for answer in answers for name in answer.maxima}:
        metrics[name] = max(answer.maxima[name] for answer in answers if name in answer.maxima)
    for first in answers[:1]:
        metrics |= {name: float(np.mean(values)) for name, values in first.steps.items()}
        if first.steps:
            metrics["optimizer/steps"] = float(max(map(len, first.steps.values())))
    return metrics


def with_effective_sample_size(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics with the effective sample size of the importance weights, computed from the means of w and of
    w², which are removed."""
    shown = {name: value for name, value in metrics.items() if name not in (WEIGHT_MEAN, WEIGHT_SQUARED)}
    if metrics.get(WEIGHT_SQUARED):
        size = effective_sample_size(metrics[WEIGHT_MEAN], metrics[WEIGHT_SQUARED])
        shown["mismatch/effective_sample_size"] = size
    return shown


def effective_sample_size(mean: float, mean_square: float) -> float:
    """`(Σ w)² / (n Σ w²)` of weights (Kish 1965), in (0, 1]: the share of the samples that remain effective."""
    return mean**2 / mean_square


def scatter(
    answers: Iterable[RankAnswer], size: int, column: Callable[[RankAnswer], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return a column of all ranks in the order of the batch, `float32 [size]`."""
    flat = np.full(size, np.nan, np.float32)
    for answer in answers:
        flat[answer.places] = column(answer)
    return flat
