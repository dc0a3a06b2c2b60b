"""From rewards to advantages. Pure functions; group statistics in float64; equal rewards give exactly zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlhf.types import Group, Sample, Scored

STD_EPSILON = 1e-6


def group_relative(rewards: Sequence[float], *, normalize_by_std: bool) -> NDArray[np.float64]:
    """Each reward's distance from its group's mean, `float64 [n]`.

    With `normalize_by_std` it is divided by the sample standard deviation plus 1e-6 (GRPO, arXiv 2402.03300); without,
    this is Dr. GRPO's estimator (arXiv 2503.20783). A group of one, and a group of equal rewards, is all zeros.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.size < 2 or np.all(values == values[0]):
        return np.zeros_like(values)
    centred: NDArray[np.float64] = values - values.mean()
    return centred / (float(values.std(ddof=1)) + STD_EPSILON) if normalize_by_std else centred


def group_advantages(groups: Sequence[Group], *, normalize_by_std: bool) -> list[NDArray[np.float32]]:
    """One advantage for every trainable sample of every group, in order. Samples without a score are not there."""
    return [
        group_relative([score.value for _, _, score in group.trainable], normalize_by_std=normalize_by_std).astype(
            np.float32
        )
        for group in groups
    ]


def shuffled_rewards(groups: Sequence[Group], *, seed: int) -> list[Group]:
    """The same groups with their scores dealt anew among all trainable samples of the batch: a control, from which
    nothing can be learnt but what training does on its own."""
    scores = [score for group in groups for _, _, score in group.trainable]
    dealt = iter(np.random.default_rng(seed).permutation(len(scores)).tolist())
    return [
        replace(group, samples=tuple(_with_score(sample, scores, dealt) for sample in group.samples))
        for group in groups
    ]


def _with_score(sample: Sample, scores: Sequence[Scored], dealt: Iterator[int]) -> Sample:
    return replace(sample, score=scores[next(dealt)]) if sample.trainable else sample
