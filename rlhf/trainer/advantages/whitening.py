"""Statistics over the trained tokens of a batch, and whitening with them. All in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlhf.trainer.arrays import Doubles

VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of `count` values: where all are equal, exactly their value and 0; for no values, 0."""

    count: int
    mean: float
    variance: float


def masked_values(values: ArrayLike, mask: ArrayLike) -> Doubles:
    """`values` as float64, with exactly 0 where `mask` is 0, for any value there (NaN and infinity included)."""
    chosen: Doubles = np.where(np.asarray(mask) > 0, np.asarray(values, dtype=np.float64), 0.0)
    return chosen


def masked_moments(values: ArrayLike, mask: ArrayLike, *, ddof: int = 1) -> Moments:
    """Moments of `values` where `mask` is not 0, any shape. `ddof` 1 is the sample variance, 0 the population's."""
    chosen = np.asarray(values, dtype=np.float64)[np.asarray(mask) > 0]
    if chosen.size == 0:
        return Moments(0, 0.0, 0.0)
    if np.all(chosen == chosen[0]):
        return Moments(chosen.size, float(chosen[0]), 0.0)
    return Moments(chosen.size, float(chosen.mean()), float(chosen.var(ddof=ddof)))


def whiten(values: ArrayLike, mask: ArrayLike, *, ddof: int = 1, shift_mean: bool = True) -> Doubles:
    """`(values - mean) / sqrt(variance + 1e-8)` over the positions where `mask` is not 0, and 0 elsewhere; any shape.

    `ddof` 1 is the sample variance, as for a group's rewards: a batch is a sample of the policy's behaviour. `ddof` 0
    is the population variance, which the authors of REINFORCE++ (arXiv 2501.03262) used. Without `shift_mean` the mean
    is kept: values are scaled but not shifted. Equal values become exactly zero (or keep their mean).
    """
    moments = masked_moments(values, mask, ddof=ddof)
    scale = 1.0 / np.sqrt(moments.variance + VARIANCE_EPSILON)
    center = 0.0 if shift_mean else moments.mean
    return masked_values((masked_values(values, mask) - moments.mean) * scale + center, mask)
