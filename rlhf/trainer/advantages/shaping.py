"""Reward shaping before advantages: penalties for length and for KL to the reference policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlhf.trainer.advantages.whitening import masked_values
from rlhf.trainer.arrays import Doubles
from rlhf.trainer.config import KlEstimator


def overlong_penalty(lengths: ArrayLike, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> Doubles:
    """The length penalty added to the reward of an answer of `lengths` tokens, any shape (DAPO, arXiv 2503.14476,
    equation 13).

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
