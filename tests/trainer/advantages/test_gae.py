"""GAE against the definition summed out in plain Python, and what follows a truncated episode."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.trainer.advantages import gae, gae_per_turn, length_adaptive_gae, length_adaptive_lambda
from tests.trainer.advantages.made import batch


def by_definition(rewards: list[float], values: list[float], after: float, gamma: float, lam: float) -> list[float]:
    """`A_t = sum_k (gamma lam)^k delta_{t+k}` over the actions of one episode."""
    following = [*values, after][1:]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [
        math.fsum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[start:])) for start in range(len(deltas))
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0), (0.0, 0.5)])
def test_gae_is_the_discounted_sum_of_the_errors_that_follow(gamma: float, lam: float) -> None:
    made = batch(0)
    estimates = gae(made.rewards, made.values, made.mask, gamma=gamma, lam=lam, bootstrap=made.bootstrap)
    for row, mask in enumerate(made.mask > 0):
        rewards, values = made.rewards[row, mask].tolist(), made.values[row, mask].tolist()
        expected = by_definition(rewards, values, made.bootstrap[row], gamma, lam)
        np.testing.assert_allclose(estimates.advantages[row, mask], expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(estimates.returns[row, mask], np.add(expected, values), rtol=1e-12, atol=1e-12)


def test_a_truncated_episode_ends_in_the_value_of_what_follows_and_a_terminated_one_in_nothing() -> None:
    truncated_then_terminated = gae([[1.0]] * 2, [[0.5]] * 2, [[1]] * 2, gamma=0.5, lam=1.0, bootstrap=[4.0, 0.0])
    assert truncated_then_terminated.advantages.tolist() == [[2.5], [0.5]]
    assert gae([[1.0]], [[0.5]], [[1]], gamma=0.5, lam=1.0).advantages.tolist() == [[0.5]]


def test_a_lambda_an_episode_is_reckoned_with_in_double_precision() -> None:
    made, lam = batch(4), np.float32([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9])
    single, double = (gae(made.rewards, made.values, made.mask, gamma=0.9, lam=each) for each in (lam, lam.tolist()))
    assert np.array_equal(single.advantages, double.advantages)


def test_a_turn_is_one_action_with_the_value_of_its_first_token() -> None:
    mask, turns = [[1, 1, 0, 1, 1, 1]], [[1, 1, 1, 2, 2, 2]]
    rewards, values = [[0.5, 0.5, 9.0, 0.0, 0.0, 3.0]], [[1.0, 7.0, 9.0, 2.0, 7.0, 7.0]]
    estimates = gae_per_turn(rewards, values, mask, turns, gamma=0.5, lam=0.5, bootstrap=[4.0])
    first, second = by_definition([1.0, 3.0], [1.0, 2.0], 4.0, 0.5, 0.5)
    assert estimates.advantages.tolist() == [[first, first, 0.0, second, second, second]]
    assert estimates.returns.tolist() == [[first + 1, first + 1, 0.0, second + 2, second + 2, second + 2]]


def test_turns_of_one_token_are_tokens() -> None:
    made = batch(2)
    places = np.broadcast_to(np.arange(made.mask.shape[1]), made.mask.shape)
    per_turn = gae_per_turn(made.rewards, made.values, made.mask, places, gamma=0.9, lam=0.8)
    assert np.array_equal(per_turn.advantages, gae(made.rewards, made.values, made.mask, gamma=0.9, lam=0.8).advantages)


def test_the_longer_the_answer_the_further_the_outcome_is_carried() -> None:
    assert length_adaptive_lambda([0, 1, 4, 40], alpha=0.5).tolist() == [0.0, 0.0, 0.5, 0.95]
    single, whole = (length_adaptive_lambda(lengths, alpha=0.5) for lengths in (np.float32([7.0]), [7]))
    assert single.tolist() == whole.tolist()


def test_the_length_decides_the_advantages_and_the_critic_has_a_lambda_of_its_own() -> None:
    made = batch(3)
    given, more = (made.rewards, made.values, made.mask), {"gamma": 0.9, "bootstrap": made.bootstrap}
    found = length_adaptive_gae(*given, alpha=0.5, critic_lam=1.0, **more)
    lam = length_adaptive_lambda(made.mask.sum(-1), alpha=0.5)
    assert len(set(lam.tolist())) > 2
    for row in range(len(lam)):
        alone = gae(*(column[row][None] for column in given), gamma=0.9, lam=lam[row], bootstrap=[made.bootstrap[row]])
        assert np.array_equal(found.advantages[row], alone.advantages[0])
    assert np.array_equal(found.returns, gae(*given, lam=1.0, **more).returns)
