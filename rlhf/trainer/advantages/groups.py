"""Control experiments on groups. Samples without a score are not affected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rlhf.types import Group, Sample, Scored, Trajectory


def shuffled_rewards(groups: Sequence[Group], *, seed: int) -> list[Group]:
    """The same groups with their scores permuted among all trainable samples of the batch: a control experiment, in
    which the rewards carry no signal. The rewards of turns are part of the scores, paid at the end."""
    scores = [score for group in groups for _, _, score in group.trainable]
    dealt = iter(np.random.default_rng(seed).permutation(len(scores)).tolist())
    return [
        replace(group, samples=tuple(_with_score(sample, scores, dealt) for sample in group.samples))
        for group in groups
    ]


def _with_score(sample: Sample, scores: Sequence[Scored], dealt: Iterator[int]) -> Sample:
    if not isinstance(sample.trajectory, Trajectory) or not isinstance(sample.score, Scored):
        return sample
    score = replace(scores[next(dealt)], turn_weight=0.0, only_turns=False)
    return Sample(trajectory=sample.trajectory, score=score)
