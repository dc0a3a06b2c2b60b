"""Reward shaping, Monte-Carlo returns, and the critic-free estimators built on them.

All arrays are `[B, T]`; masked positions are ignored.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from rlhf.trainer.advantages.relative import group_relative, per_group
from rlhf.trainer.advantages.whitening import masked_values, whiten
from rlhf.trainer.arrays import Doubles
from rlhf.trainer.config import KlEstimator


def rewards_to_go(rewards: ArrayLike, mask: ArrayLike, *, gamma: float = 1.0) -> Doubles:
    """Discounted sum of the rewards from each action on, `G_t = r_t + gamma G_next`, 0 where masked.

    The environment's tokens are not steps: a reward after a tool's reply is discounted once.
    """
    live = np.asarray(mask) > 0
    reward = masked_values(rewards, live)
    running, returns = np.zeros(live.shape[0]), np.zeros(live.shape)
    for t in reversed(range(live.shape[1])):
        running = np.where(live[:, t], reward[:, t] + gamma * running, running)
        returns[:, t] = np.where(live[:, t], running, 0.0)
    return returns


def outcome_rewards(scores: ArrayLike, mask: ArrayLike) -> Doubles:
    """Token rewards `[B, T]` of outcome scores `[B]`: the score at a row's last action, 0 elsewhere. A row without
    actions is all zeros."""
    live = np.asarray(mask) > 0
    is_last = live & (np.cumsum(live[:, ::-1], axis=1)[:, ::-1] == 1)
    return masked_values(np.broadcast_to(np.asarray(scores, dtype=np.float64)[:, None], live.shape), is_last)


def over_tokens(advantages: ArrayLike, mask: ArrayLike) -> Doubles:
    """Broadcast one advantage per sequence `[B]` to each of its action tokens, `[B, T]`."""
    return masked_values(np.broadcast_to(np.asarray(advantages, dtype=np.float64)[:, None], np.shape(mask)), mask)


def reinforce_plus_plus(rewards: ArrayLike, mask: ArrayLike, *, gamma: float = 1.0, ddof: int = 1) -> Doubles:
    """Rewards to go, whitened over all action tokens of the batch (REINFORCE++, arXiv 2501.03262)."""
    return whiten(rewards_to_go(rewards, mask, gamma=gamma), mask, ddof=ddof)


def reinforce_plus_plus_baseline(scores: ArrayLike, groups: ArrayLike, mask: ArrayLike, *, ddof: int = 1) -> Doubles:
    """Difference from the group's mean, whitened over all action tokens of the batch (REINFORCE++-baseline, arXiv
    2501.03262): divided by the batch's standard deviation, not by that of a small group. `scores` and `groups` are
    `[B]`."""
    centred = per_group(partial(group_relative, normalize_by_std=False), groups, scores)
    return whiten(over_tokens(centred, mask), mask, ddof=ddof)


def remax(rewards: ArrayLike, baseline: ArrayLike, mask: ArrayLike) -> Doubles:
    """Rewards to go minus the reward of the greedy answer to the same prompt, `baseline [B]` (ReMax, arXiv
    2310.10505)."""
    return rewards_to_go(rewards, mask) - over_tokens(baseline, mask)


def overlong_penalty(lengths: ArrayLike, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> Doubles:
    """Return the length penalty added to the reward of an answer of `lengths` tokens, any shape (DAPO, arXiv
    2503.14476, equation 13).

    0 up to `max_tokens - buffer_tokens`, then decreasing linearly to `-factor` at `max_tokens`, and constant beyond.
    """
    into_buffer = np.asarray(lengths, dtype=np.float64) - (max_tokens - buffer_tokens)
    return -factor * np.clip(into_buffer / buffer_tokens, 0.0, 1.0)


def kl_estimate(log_ratio: ArrayLike, estimator: KlEstimator) -> Doubles:
    """Estimate of KL(policy, reference) at every token, any shape in nats, from `log policy - log reference` (Schulman
    2020; see `rlhf.trainer.losses.kl` for the use of each estimator)."""
    d = np.asarray(log_ratio, dtype=np.float64)
    if estimator == "k1":
        return d
    return d**2 / 2 if estimator == "k2" else np.expm1(-d) + d


def kl_penalised(rewards: ArrayLike, kl: ArrayLike, mask: ArrayLike, *, coefficient: float) -> Doubles:
    """Token rewards minus `coefficient` times each token's KL estimate in nats, `[B, T]`, 0 where masked (KL in the
    reward, arXiv 1909.08593). It is a constant for the policy gradient: no gradient flows through it."""
    return masked_values(rewards, mask) - coefficient * masked_values(kl, mask)
