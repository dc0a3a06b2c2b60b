"""Returns, whitening and shaped rewards against plain Python."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from rlhf.trainer.advantages import (
    Moments,
    kl_estimate,
    kl_penalised,
    masked_moments,
    outcome_rewards,
    overlong_penalty,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rewards_to_go,
    whiten,
)
from tests.trainer.advantages.made import batch


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_rewards_to_go_are_discounted_once_an_action(gamma: float) -> None:
    made = batch(0)
    returns = rewards_to_go(made.rewards, made.mask, gamma=gamma)
    for row, live in enumerate(made.mask > 0):
        earned = made.rewards[row, live]
        expected = [math.fsum(gamma**k * r for k, r in enumerate(earned[s:])) for s in range(earned.size)]
        np.testing.assert_allclose(returns[row, live], expected, rtol=1e-12, atol=1e-12)


def test_an_outcome_is_earned_by_the_last_action_and_by_none_where_there_is_none() -> None:
    rewards = outcome_rewards([2.0, 3.0], [[1, 0, 1, 0], [0, 0, 0, 0]])
    assert rewards.tolist() == [[0.0, 0.0, 2.0, 0.0], [0.0] * 4]


@pytest.mark.parametrize("ddof", [0, 1])
def test_whitened_tokens_have_mean_0_and_variance_1_over_the_actions(ddof: int) -> None:
    made = batch(1)
    whitened = whiten(made.values * 30 + 7, made.mask, ddof=ddof)
    chosen = whitened[made.mask > 0].tolist()
    mean = math.fsum(chosen) / len(chosen)
    variance = math.fsum((v - mean) ** 2 for v in chosen) / (len(chosen) - ddof)
    assert (mean, variance) == pytest.approx((0.0, 1.0), abs=1e-9)


def test_scaling_without_shifting_keeps_the_mean() -> None:
    made = batch(2)
    kept = whiten(made.values + 5, made.mask, shift_mean=False)
    assert masked_moments(kept, made.mask).mean == pytest.approx(masked_moments(made.values + 5, made.mask).mean)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_equal_values_whiten_to_exactly_zero(count: int) -> None:
    mask = np.arange(6) < count
    assert not whiten(np.full(6, 0.1), mask).any()
    assert masked_moments(np.full(6, 0.1), mask) == Moments(count, 0.1 if count else 0.0, 0.0)


def test_moments_count_what_is_not_masked() -> None:
    assert masked_moments([1.0, 9.0, 2.0, 3.0], [1, 0, 1, 1]) == Moments(3, 2.0, 1.0)


def test_reinforce_plus_plus_whitens_the_returns_and_its_baseline_form_the_distances_from_the_group() -> None:
    mask = np.ones((4, 1))
    assert reinforce_plus_plus([[1.0], [1.0], [3.0], [3.0]], mask, ddof=0) == pytest.approx(
        np.array([[-1.0], [-1.0], [1.0], [1.0]])
    )
    by_group = reinforce_plus_plus_baseline([1.0, 3.0, 11.0, 25.0], [0, 0, 1, 1], mask, ddof=0)
    assert by_group == pytest.approx(np.array([[-0.2], [0.2], [-1.4], [1.4]]))


def test_reinforce_plus_plus_discounts_once_an_action() -> None:
    two = reinforce_plus_plus([[0.0, 8.0]], [[1, 1]], gamma=0.5)
    three = reinforce_plus_plus([[0.0, 0.0, 8.0]], [[1, 1, 1]], gamma=0.5)
    assert two[0].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert three[0] == pytest.approx((np.array([2.0, 4.0, 8.0]) - 14 / 3) / np.std([2.0, 4.0, 8.0], ddof=1))


def test_a_batch_of_equal_groups_teaches_reinforce_plus_plus_baseline_nothing() -> None:
    scores, groups = [0.3, 0.3, 0.3, 0.9], [0, 0, 0, 1]
    assert not reinforce_plus_plus_baseline(scores, groups, np.ones((4, 3))).any()


def test_remax_takes_the_greedy_answers_reward_from_every_action() -> None:
    assert remax([[0.0, 1.0, 2.0]], [0.5], [[1, 0, 1]]).tolist() == [[1.5, 0.0, 1.5]]


def test_overlong_answers_pay_in_a_line_over_the_buffer_and_no_more_than_the_factor() -> None:
    penalty = overlong_penalty([0, 60, 70, 80, 100, 130], max_tokens=100, buffer_tokens=40, factor=2.0)
    assert penalty.tolist() == [0.0, 0.0, -0.5, -1.0, -2.0, -2.0]
    single = overlong_penalty(np.float32([62.0]), max_tokens=100, buffer_tokens=60)
    assert single.tolist() == overlong_penalty([62], max_tokens=100, buffer_tokens=60).tolist()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_is_reckoned_in_double_precision(estimator: Literal["k1", "k2", "k3"]) -> None:
    single = kl_estimate(np.float32([0.1, -0.7]), estimator)
    assert single.dtype == np.float64
    assert single.tolist() == kl_estimate(np.float32([0.1, -0.7]).tolist(), estimator).tolist()


def test_kl_is_taken_from_the_reward_of_each_action() -> None:
    assert kl_penalised([[1.0, 5.0, 0.0]], [[2.0, 5.0, -4.0]], [[1, 0, 1]], coefficient=0.5).tolist() == [[0, 0, 2]]
