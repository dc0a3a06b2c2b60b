"""V-trace against the paper's double sum, and where it is something known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.credit.estimators import gae, vtrace
from tests.trainer.credit.made import drawn


def by_definition(made: Batch, row: int, gamma: float, rho_bar: float, c_bar: float) -> list[float]:
    """`v_s = V_s + sum_t gamma^(t-s) (prod c) rho_t delta_t` of equation 1, over the actions of one row."""
    columns = (made.rewards, made.values, made.proximal_logprobs, made.behaviour_logprobs)
    rewards, values, proximal, behaviour = (made.per_sample(column)[row] for column in columns)
    values = [*values, made.bootstrap[row]]
    weights = [math.exp(p - q) for p, q in zip(proximal, behaviour, strict=True)]
    deltas = [min(rho_bar, w) * (rewards[t] + gamma * values[t + 1] - values[t]) for t, w in enumerate(weights)]
    return [
        values[s]
        + math.fsum(
            gamma ** (t - s) * math.prod(min(c_bar, w) for w in weights[s:t]) * deltas[t] for t in range(s, len(deltas))
        )
        for s in range(len(deltas))
    ]


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.7), (math.inf, 1.0)])
def test_targets_are_the_double_sum_of_the_paper(rho_bar: float, c_bar: float) -> None:
    made = drawn(4)
    _, targets = vtrace(made, gamma=0.9, rho_bar=rho_bar, c_bar=c_bar)
    for row, own in enumerate(made.per_sample(targets)):
        expected = by_definition(made, row, 0.9, rho_bar, c_bar)
        np.testing.assert_allclose(own, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rho_bar", "policy_rho_bar"), [(1.0, 0.8), (0.8, None)])
def test_advantages_weigh_the_next_target_against_the_value(rho_bar: float, policy_rho_bar: float | None) -> None:
    made = drawn(5)
    traced = vtrace(made, gamma=0.9, rho_bar=rho_bar, c_bar=1.0, policy_rho_bar=policy_rho_bar)
    log_ratio = made.proximal_logprobs - made.behaviour_logprobs
    columns = (*traced, made.rewards, made.values, np.minimum(np.exp(log_ratio), 0.8))
    for row, own in enumerate(zip(*map(made.per_sample, columns), strict=True)):
        advantages, targets, rewards, values, weights = own
        following = np.array([*targets, made.bootstrap[row]][1:])
        expected = weights * (rewards + 0.9 * following[: len(weights)] - values)
        np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)


def test_on_policy_targets_are_the_monte_carlo_returns_with_a_bootstrap() -> None:
    made = drawn(6)
    traced = vtrace(replace(made, behaviour_logprobs=made.proximal_logprobs), gamma=0.9, rho_bar=1.0, c_bar=1.0)
    np.testing.assert_allclose(traced[1], gae(made, gamma=0.9, lam=1.0)[1], rtol=1e-12, atol=1e-12)


def test_nothing_crosses_an_end_inside_a_sample() -> None:
    made = drawn(7, rows=2)
    ends = np.full(made.tokens, 0.9)
    ends[4] = 0.0
    other = replace(made, rewards=np.where(np.arange(made.tokens) > 4, 5.0, made.rewards))
    first, second = (vtrace(one, gamma=ends, rho_bar=1.0, c_bar=1.0)[1][:5] for one in (made, other))
    assert np.array_equal(first, second)
