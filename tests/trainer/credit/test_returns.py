"""Returns and whitening against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.trainer.credit.estimators import (
    moments,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rewards_to_go,
    whiten,
)
from tests.trainer.credit.made import drawn, made_of, scored


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_rewards_to_go_are_discounted_once_an_action(gamma: float) -> None:
    made = drawn(0)
    returns = rewards_to_go(made.rewards, made.lengths, gamma=gamma)
    for earned, found in zip(made.per_sample(made.rewards), made.per_sample(returns), strict=True):
        expected = [math.fsum(gamma**k * r for k, r in enumerate(earned[s:])) for s in range(earned.size)]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_whitened_tokens_have_mean_0_and_variance_1_over_the_actions(ddof: int) -> None:
    made = drawn(1)
    chosen = whiten(made.values * 30 + 7, ddof=ddof).tolist()
    mean = math.fsum(chosen) / len(chosen)
    variance = math.fsum((v - mean) ** 2 for v in chosen) / (len(chosen) - ddof)
    assert (mean, variance) == pytest.approx((0.0, 1.0), abs=1e-9)


def test_scaling_without_shifting_keeps_the_mean() -> None:
    made = drawn(2)
    kept = whiten(made.values + 5, shift_mean=False)
    assert moments(kept)[0] == pytest.approx(moments(made.values + 5)[0])


@pytest.mark.parametrize("count", [0, 1, 5])
def test_equal_values_whiten_to_exactly_zero(count: int) -> None:
    assert not whiten(np.full(count, 0.1)).any()
    assert moments(np.full(count, 0.1)) == (0.1 if count else 0.0, 0.0)


def test_reinforce_plus_plus_whitens_the_returns_and_its_baseline_form_the_distances_from_the_group() -> None:
    made = made_of(np.ones((4, 1)), rewards=[[1.0], [1.0], [3.0], [3.0]])
    assert reinforce_pp(made, gamma=1.0, ddof=0).tolist() == pytest.approx([-1, -1, 1, 1])
    by_group = reinforce_pp_baseline(scored([1.0, 3.0, 11.0, 25.0], groups=[0, 0, 1, 1]), ddof=0)
    assert by_group.tolist() == pytest.approx([-0.2, 0.2, -1.4, 1.4])


def test_reinforce_plus_plus_discounts_once_an_action() -> None:
    two = reinforce_pp(made_of([[1, 1]], rewards=[[0, 8]]), gamma=0.5)
    three = reinforce_pp(made_of([[1, 1, 1]], rewards=[[0, 0, 8]]), gamma=0.5)
    assert two.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert three == pytest.approx((np.array([2.0, 4.0, 8.0]) - 14 / 3) / np.std([2.0, 4.0, 8.0], ddof=1))


def test_a_batch_of_equal_groups_teaches_reinforce_plus_plus_baseline_nothing() -> None:
    assert not reinforce_pp_baseline(scored([0.3, 0.3, 0.3, 0.9], 3, [0, 0, 0, 1])).any()


def test_remax_takes_the_greedy_answers_reward_from_every_action() -> None:
    made = made_of([[1, 0, 1]], rewards=[[0, 1, 2]], baselines=[0.5])
    assert remax(made).tolist() == [1.5, 1.5]
