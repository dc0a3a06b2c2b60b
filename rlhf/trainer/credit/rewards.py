"""The rewards of a batch's episodes, as columns, and their permutation as a control experiment. Numpy only and pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf.errors import NotFinite
from rlhf.trainer.arrays import Doubles, Ints
from rlhf.trainer.config import OverlongConfig
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Trajectory, is_finite


def earned_columns(groups: Sequence[Group], lengths: Ints, overlong: OverlongConfig, max_tokens: int) -> dict[str, Any]:
    """Return the columns of `Batch` that say what the trainable episodes of `groups`, of `lengths` ACTION tokens,
    earned. Raises `NotFinite` for a score that is NaN or infinite: nothing is trained on it."""
    trained = [(g, trajectory, score) for g, group in enumerate(groups) for _, trajectory, score in group.trainable]
    turns, rewards = _turns([(trajectory, score.turn_weight) for _, trajectory, score in trained])
    more = [trajectory.status is EpisodeStatus.TRUNCATED and score.only_turns for _, trajectory, score in trained]
    scores = np.array([_number(trajectory, score) for _, trajectory, score in trained], np.float64)
    scores = scores + overlong_penalty(lengths, overlong, max_tokens)
    paid = np.bincount(np.repeat(np.arange(len(lengths)), lengths), weights=rewards, minlength=len(lengths))
    acting = lengths > 0
    rewards[np.cumsum(lengths)[acting] - 1] += (scores - paid)[acting]
    return {
        "scores": scores,
        "outcomes": scores,
        "groups": _compared([(g, trajectory.role) for g, trajectory, _ in trained]),
        "bootstrapped": np.array(more, np.bool_),
        "baselines": _baselines(groups),
        "turns": turns,
        "rewards": rewards,
        "kl": np.zeros(len(rewards)),
    }


def overlong_penalty(lengths: Ints, overlong: OverlongConfig, max_tokens: int) -> Doubles:
    """Return the length penalty added to the reward of each reply, `[B]` (DAPO, arXiv 2503.14476, equation 13): 0 up to
    `max_tokens` less the buffer, then decreasing linearly to minus the factor at `max_tokens`, and constant beyond."""
    if not overlong.buffer_tokens:
        return np.zeros(lengths.shape)
    into_buffer = lengths.astype(np.float64) - (max_tokens - overlong.buffer_tokens)
    return -overlong.penalty_factor * np.clip(into_buffer / overlong.buffer_tokens, 0.0, 1.0)


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
    return [_with_scores(group, scores, dealt) for group in groups]


def _with_scores(group: Group, scores: Sequence[Scored], dealt: Iterator[int]) -> Group:
    samples = list(group.samples)
    for index, trajectory, _ in group.trainable:
        score = replace(scores[next(dealt)], turn_weight=0.0, only_turns=False)
        samples[index] = Sample(trajectory=trajectory, score=score)
    return replace(group, samples=tuple(samples))
