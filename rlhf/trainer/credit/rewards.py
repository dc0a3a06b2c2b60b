"""The rewards of a batch's episodes, as flat columns, and their permutation as a control experiment. Numpy only and
pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import NotFinite
from rlhf.trainer.arrays import Doubles, Ints
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Trajectory, is_finite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeRewards:
    """For every trainable episode, `[B]`: `outcomes` are the scores, `compared` is its comparison group (the same role
    in the same group), `bootstrapped` is true where rewards would have continued (truncated, and rewarded only by its
    turns), `baselines` the outcome of its group's greedy episode, None if a group lacks one.

    For every ACTION token, `[N]` as in the batch: `turns` numbers its turn in the episode, and `turn_rewards` are the
    rewards of turns, with their weight in the outcome, at the last ACTION token of each turn.
    """

    outcomes: Doubles
    compared: Ints
    bootstrapped: NDArray[np.bool_]
    baselines: Doubles | None
    turns: Ints
    turn_rewards: Doubles


def episode_rewards(groups: Sequence[Group]) -> EpisodeRewards:
    """Return the rewards of the trainable episodes of `groups`, in order. Raises `NotFinite` for a score that is NaN or
    infinite: nothing is trained on it."""
    trained = [(g, trajectory, score) for g, group in enumerate(groups) for _, trajectory, score in group.trainable]
    numbers, rewards = _turns([(trajectory, score.turn_weight) for _, trajectory, score in trained])
    more = [trajectory.status is EpisodeStatus.TRUNCATED and score.only_turns for _, trajectory, score in trained]
    return EpisodeRewards(
        outcomes=np.array([_number(trajectory, score) for _, trajectory, score in trained], np.float64),
        compared=_compared([(g, trajectory.role) for g, trajectory, _ in trained]),
        bootstrapped=np.array(more, np.bool_),
        baselines=_baselines(groups),
        turns=numbers,
        turn_rewards=rewards,
    )


def _number(trajectory: Trajectory, score: Scored) -> float:
    if not is_finite(score.value):
        raise NotFinite(f"the reward of an episode of task {trajectory.task.id} is {score.value}; it cannot be trained")
    return score.value


def _compared(keys: Sequence[tuple[int, str]]) -> Ints:
    """Equal numbers for equal keys, in the order of their first."""
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def _turns(weighted: Sequence[tuple[Trajectory, float]]) -> tuple[Ints, Doubles]:
    """Return the number of each ACTION token's turn, and the turns' rewards times the episode's weight of them. The
    reward of a turn without an ACTION token has no position: it is only part of the outcome."""
    tokens = sum(trajectory.action_tokens for trajectory, _ in weighted)
    numbers, rewards, place = np.zeros(tokens, np.int64), np.zeros(tokens), 0
    for trajectory, weight in weighted:
        number = 0
        for segment in trajectory.segments:
            acted = np.flatnonzero(segment.action_mask)
            for turn in segment.turns:
                first, last = place + np.searchsorted(acted, [turn.start, turn.stop])
                numbers[first:last] = number
                if turn.reward is not None and last > first:
                    rewards[last - 1] = weight * turn.reward
                number += 1
            place += len(acted)
    return numbers, rewards


def _baselines(groups: Sequence[Group]) -> Doubles | None:
    """Return the greedy episode's score, once for every sample of its group; None when a group has none."""
    if any(group.baseline is None for group in groups):
        return None
    scores = [group.baseline.score for group in groups if group.baseline]
    values = [score.value if isinstance(score, Scored) else np.nan for score in scores]
    return np.repeat(np.array(values, np.float64), [len(group.trainable) for group in groups])


def shuffled_rewards(groups: Sequence[Group], *, seed: int) -> list[Group]:
    """Return the same groups with their scores permuted among all trainable samples of the batch: a control experiment,
    in which the rewards carry no signal. The rewards of turns are part of the scores, paid at the end."""
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
