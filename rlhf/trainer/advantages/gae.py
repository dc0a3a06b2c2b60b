"""Generalised advantage estimation (arXiv 1506.02438) over the actions of an episode.

An action is a token, or a whole turn. The environment's tokens between two actions are not a step: the next action is
the next step, with one discount between them, however long the tool's reply was. All arrays are `[B, T]`, one episode
per row, and positions with mask 0 are ignored completely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf.trainer.advantages.whitening import masked_values
from rlhf.trainer.arrays import Doubles


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """`advantages` and the critic's targets `returns` (advantages plus values), `float64 [B, T]`, 0 where masked."""

    advantages: Doubles
    returns: Doubles


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    mask: ArrayLike,
    *,
    gamma: float,
    lam: ArrayLike,
    bootstrap: ArrayLike | None = None,
) -> Estimates:
    """Advantages of every action token, `A_t = delta_t + gamma lam A_next`, `delta_t = r_t + gamma V_next - V_t`.

    `rewards`, `values`, `mask` are `[B, T]`; `lam` a number or `[B]` (see `length_adaptive_lambda`). `bootstrap [B]` is
    the value of the state after the last action: the critic's estimate for a *truncated* episode, 0 for a *terminated*
    one. Without it all episodes count as terminated.
    """
    live = np.asarray(mask) > 0
    reward, value = masked_values(rewards, live), masked_values(values, live)
    decay = gamma * np.asarray(lam, dtype=np.float64)
    running = np.zeros(live.shape[0])
    following = np.zeros(live.shape[0]) if bootstrap is None else np.asarray(bootstrap, dtype=np.float64)
    advantages = np.zeros(live.shape)
    for t in reversed(range(live.shape[1])):
        step = live[:, t]
        delta = reward[:, t] + gamma * following - value[:, t]
        running = np.where(step, delta + decay * running, running)
        following = np.where(step, value[:, t], following)
        advantages[:, t] = np.where(step, running, 0.0)
    return Estimates(advantages, np.where(live, advantages + value, 0.0))


def gae_per_turn(
    rewards: ArrayLike,
    values: ArrayLike,
    mask: ArrayLike,
    turns: ArrayLike,
    *,
    gamma: float,
    lam: float,
    bootstrap: ArrayLike | None = None,
) -> Estimates:
    """`gae` with a whole turn as one action: `turns [B, T]` numbers the turn of each token, increasing along a row.

    A turn's value is that of its first action token (the critic's value before the reply), its reward the sum over its
    action tokens; all of them get the turn's advantage and return. Discounts count turns, not tokens.
    """
    live, turn = np.asarray(mask) > 0, np.asarray(turns)
    reward, value = masked_values(rewards, live), masked_values(values, live)
    firsts = np.zeros_like(live)
    totals, starts = np.zeros(live.shape), np.zeros(live.shape, dtype=np.int64)
    for row, place in _turn_places(live, turn):
        firsts[row, place[0]] = True
        totals[row, place[0]] = reward[row, place].sum()
        starts[row, place] = place[0]
    per_turn = gae(totals, value, firsts, gamma=gamma, lam=lam, bootstrap=bootstrap)
    spread = [np.take_along_axis(part, starts, axis=1) for part in (per_turn.advantages, per_turn.returns)]
    return Estimates(masked_values(spread[0], live), masked_values(spread[1], live))


def length_adaptive_lambda(lengths: ArrayLike, *, alpha: float) -> Doubles:
    """`1 - 1 / (alpha length)` within [0, 1], `float64 [B]`: in long answers the outcome propagates further back (VAPO,
    arXiv 2504.05118). `lengths [B]` are action tokens."""
    scaled = np.maximum(alpha * np.asarray(lengths, dtype=np.float64), 1.0)
    return np.clip(1.0 - 1.0 / scaled, 0.0, 1.0)


def length_adaptive_gae(
    rewards: ArrayLike,
    values: ArrayLike,
    mask: ArrayLike,
    *,
    gamma: float,
    alpha: float,
    critic_lam: float,
    bootstrap: ArrayLike | None = None,
) -> Estimates:
    """VAPO's `gae` (arXiv 2504.05118): the policy's advantages use a lambda that depends on each episode's length, the
    critic's returns use `critic_lam`, 1 in the paper."""
    lam = length_adaptive_lambda((np.asarray(mask) > 0).sum(-1), alpha=alpha)
    policy = gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    critic = gae(rewards, values, mask, gamma=gamma, lam=critic_lam, bootstrap=bootstrap)
    return Estimates(policy.advantages, critic.returns)


def _turn_places(live: NDArray[np.bool_], turn: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Row and action positions of every turn that has any."""
    return [
        (row, np.flatnonzero(live[row] & (turn[row] == number)))
        for row in range(live.shape[0])
        for number in np.unique(turn[row][live[row]])
    ]
