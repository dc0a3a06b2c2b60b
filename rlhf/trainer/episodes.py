"""The view of a batch for estimators: one episode per row, `[B, T]` over its ACTION tokens. Numpy only and pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import NotFinite
from rlhf.trainer.advantages import kl_estimate, kl_penalised, outcome_rewards, overlong_penalty
from rlhf.trainer.config import OverlongConfig
from rlhf.trainer.forward_outputs import ForwardOutputs
from rlhf.types import EpisodeStatus, Group, Scored, Trajectory

Estimator = Literal["k1", "k2", "k3"]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """The trainable episodes of a batch, in its order.

    `outcomes` `[B]` are the scores (including the length penalty and, where KL is in the reward, the KL penalty).
    `groups` `[B]` is the comparison group of each: the same role in the same group. `lengths` `[B]` are its ACTION
    tokens; `mask` `[B, T]` is true on them and `turns` `[B, T]` numbers their turns. `rewards` `[B, T]` are per token,
    and sum to the outcome: the rewards of turns, with their weight in the outcome, at the turns' last actions, the rest
    at the very last action, KL everywhere. Columns that were not requested are None: `baselines` `[B]` (a greedy
    episode's outcome), `values` `[B, T]` and `bootstrap` `[B]` (the critic), `behaviour`, `proximal` and `reference`
    log-probs `[B, T]`.
    """

    outcomes: Doubles
    groups: Ints
    lengths: Ints
    mask: NDArray[np.bool_]
    turns: Ints
    rewards: Doubles
    behaviour: Doubles
    baselines: Doubles | None = None
    values: Doubles | None = None
    bootstrap: Doubles | None = None
    proximal: Doubles | None = None
    reference: Doubles | None = None

    def flat(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """`[B, T]` as the batch's flat `float32 [N]`."""
        return rows[self.mask].astype(np.float32)


def episodes_of(
    groups: Sequence[Group],
    outputs: ForwardOutputs,
    behaviour: NDArray[np.float32],
    *,
    overlong: OverlongConfig,
    max_tokens: int,
    kl_in_reward: float = 0.0,
    estimator: Estimator = "k1",
) -> Episodes:
    """The episodes of `groups` with the ranks' `outputs` for them. `behaviour` is `[N]`, flat as in the batch.

    `kl_in_reward` is the coefficient of KL to the reference in the reward, per nat, estimated by `estimator`. Raises
    `NotFinite` for a score that is NaN or infinite: nothing is trained on it.
    """
    trained = [(g, trajectory, score) for g, group in enumerate(groups) for _, trajectory, score in group.trainable]
    lengths = np.array([trajectory.action_tokens for _, trajectory, _ in trained], np.int64)
    mask = np.arange(max(lengths, default=0)) < lengths[:, None]
    shaping = overlong_penalty_of(lengths, overlong, max_tokens)
    outcomes = np.array([_number(trajectory, score) for _, trajectory, score in trained], np.float64) + shaping
    rows = {name: _rows(values, mask) for name, values in outputs.named() if values is not None}
    kl = kl_estimate(rows["proximal"] - rows["reference"], estimator) if kl_in_reward else np.zeros(mask.shape)
    turns, turn_rewards, paid = _turns([(trajectory, score.turn_weight) for _, trajectory, score in trained], mask)
    return Episodes(
        outcomes=outcomes - kl_in_reward * kl.sum(1),
        groups=_compared([(g, trajectory.role) for g, trajectory, _ in trained]),
        lengths=lengths,
        mask=mask,
        turns=turns,
        rewards=kl_penalised(outcome_rewards(outcomes - paid, mask) + turn_rewards, kl, mask, coefficient=kl_in_reward),
        behaviour=_rows(behaviour, mask),
        baselines=_baselines(groups),
        bootstrap=_bootstrap(outputs, [(trajectory, score) for _, trajectory, score in trained]),
        **rows,
    )


def _compared(keys: Sequence[tuple[int, str]]) -> Ints:
    """Equal numbers for equal keys, in the order of their first."""
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def overlong_penalty_of(lengths: Ints, overlong: OverlongConfig, max_tokens: int) -> Doubles:
    """The length penalty of each reply, `[B]`; zeros where shaping is off."""
    if not overlong.buffer_tokens:
        return np.zeros(lengths.shape)
    return overlong_penalty(
        lengths, max_tokens=max_tokens, buffer_tokens=overlong.buffer_tokens, factor=overlong.factor
    )


def _number(trajectory: Trajectory, score: Scored) -> float:
    if not np.isfinite(score.value):
        raise NotFinite(f"the reward of an episode of task {trajectory.task.id} is {score.value}; it cannot be trained")
    return score.value


def _rows(flat: NDArray[np.float32], mask: NDArray[np.bool_]) -> Doubles:
    rows = np.zeros(mask.shape)
    rows[mask] = flat
    return rows


def _turns(weighted: Sequence[tuple[Trajectory, float]], mask: NDArray[np.bool_]) -> tuple[Ints, Doubles, Doubles]:
    """The number of each ACTION token's turn, the turns' rewards times the episode's weight of them at their last
    ACTION token, and what each episode is paid so, `[B]`."""
    numbers, rewards, paid = np.zeros(mask.shape, np.int64), np.zeros(mask.shape), np.zeros(len(weighted))
    for row, (trajectory, weight) in enumerate(weighted):
        place, number = 0, 0
        for segment in trajectory.segments:
            acted = np.flatnonzero(segment.action_mask)
            for turn in segment.turns:
                first, last = place + np.searchsorted(acted, [turn.start, turn.stop])
                numbers[row, first:last] = number
                if turn.reward is not None and last > first:
                    rewards[row, last - 1] += weight * turn.reward
                    paid[row] += weight * turn.reward
                number += 1
            place += len(acted)
    return numbers, rewards, paid


def _baselines(groups: Sequence[Group]) -> Doubles | None:
    """The greedy episode's score, once for every sample of its group; None when no group has one."""
    if any(group.baseline is None for group in groups):
        return None
    scores = [group.baseline.score for group in groups if group.baseline]
    values = [score.value if isinstance(score, Scored) else np.nan for score in scores]
    return np.repeat(np.array(values, np.float64), [len(group.trainable) for group in groups])


def _bootstrap(outputs: ForwardOutputs, episodes: Sequence[tuple[Trajectory, Scored]]) -> Doubles | None:
    """The critic's value behind the last token of episodes that were cut off and are rewarded by their turns alone,
    whether or not a turn was given any so far; 0 behind all others. What judges an episode as a whole is paid at its
    end, cut off or not, and nothing is left to come: paid twice it would teach never to stop."""
    if outputs.last_values is None:
        return None
    more = [trajectory.status is EpisodeStatus.TRUNCATED and score.only_turns for trajectory, score in episodes]
    return np.where(np.array(more, bool), outputs.last_values, 0.0).astype(np.float64)
