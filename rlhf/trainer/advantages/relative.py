"""Group-relative advantages: each reward is compared with the others of its group.

Every estimator maps `rewards [n]` to advantages `float64 [n]`. A group of one has nothing to compare with, and in a
group of equal rewards nothing differs: both give exactly zero, however the mean is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlhf.trainer.arrays import Doubles

STD_EPSILON = 1e-6


def group_relative(rewards: Sequence[float], *, normalize_by_std: bool, epsilon: float = STD_EPSILON) -> Doubles:
    """Each reward's difference from its group's mean, `float64 [n]`.

    With `normalize_by_std` it is divided by the sample standard deviation plus `epsilon` (GRPO, arXiv 2402.03300);
    without, this is Dr. GRPO's estimator (arXiv 2503.20783). `epsilon` bounds the amplification of rewards that hardly
    differ. A group of one, and a group of equal rewards, is all zeros.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if _incomparable(values):
        return np.zeros_like(values)
    centred: Doubles = values - values.mean()
    return centred / (float(values.std(ddof=1)) + epsilon) if normalize_by_std else centred


def leave_one_out(rewards: Sequence[float]) -> Doubles:
    """Each reward minus the mean of the *others* of its group, `float64 [n]` (RLOO, arXiv 2402.14740): this baseline
    does not depend on the reward that it is subtracted from, so the policy gradient is unbiased."""
    values = np.asarray(rewards, dtype=np.float64)
    if _incomparable(values):
        return np.zeros_like(values)
    others: Doubles = (values.sum() - values) / (values.size - 1)
    return values - others


def length_weighted(rewards: Sequence[float], lengths: Sequence[float]) -> Doubles:
    """Each reward minus the group's mean weighted by response length, `float64 [n]`: the minimum-variance baseline when
    a sequence's gradient norm grows with its length (OPO, arXiv 2505.23585). `lengths` are action tokens, `[n]`."""
    values, weights = np.asarray(rewards, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    if _incomparable(values) or not weights.any():
        return np.zeros_like(values)
    baseline: Doubles = values - (values * weights).sum() / weights.sum()
    return baseline


def best_of_group(rewards: Sequence[float], *, normalize_by_std: bool, epsilon: float = STD_EPSILON) -> Doubles:
    """Return the best reward minus the second best for the best sample, 0 for the others, `float64 [n]`: the gradient
    of max@n (arXiv 2503.19595). A tie for first place gives 0. With `normalize_by_std` as in `group_relative`."""
    values = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros_like(values)
    if _incomparable(values):
        return advantages
    second, best = np.argsort(values, kind="stable")[-2:]
    advantages[best] = values[best] - values[second]
    return advantages / (float(values.std(ddof=1)) + epsilon) if normalize_by_std else advantages


def per_group(estimate: Callable[..., Doubles], groups: ArrayLike, *columns: ArrayLike) -> Doubles:
    """Apply `estimate(*columns of the group)` to every group of a batch; results in the batch's order, `float64 [B]`.

    `groups [B]` is each sample's group, in any order; each of `columns` is `[B]`.
    """
    index = np.asarray(groups)
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    advantages = np.zeros(index.shape, dtype=np.float64)
    for group in np.unique(index):
        members = index == group
        advantages[members] = estimate(*(array[members] for array in arrays))
    return advantages


def _incomparable(values: Doubles) -> bool:
    return values.size < 2 or bool(np.all(values == values[0]))
