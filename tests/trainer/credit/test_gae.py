"""GAE against the definition summed out in plain Python, and what follows a truncated episode."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rlhf.trainer.arrays import Doubles
from rlhf.trainer.credit.estimators import gae
from tests.trainer.credit.made import drawn, made_of


def by_definition(rewards: list[float], values: list[float], after: float, gamma: float, lam: float) -> list[float]:
    """`A_t = sum_k (gamma lam)^k delta_{t+k}` over the actions of one episode."""
    following = [*values, after][1:]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [
        math.fsum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[start:])) for start in range(len(deltas))
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0), (0.0, 0.5)])
def test_gae_is_the_discounted_sum_of_the_errors_that_follow(gamma: float, lam: float) -> None:
    made = drawn(0)
    columns = (made.rewards, made.values, *gae(made, gamma=gamma, lam=lam))
    for row, (rewards, values, advantages, returns) in enumerate(zip(*map(made.per_sample, columns), strict=True)):
        expected = by_definition(rewards.tolist(), values.tolist(), made.bootstrap[row], gamma, lam)
        np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(returns, np.add(expected, values), rtol=1e-12, atol=1e-12)


def test_a_truncated_episode_ends_in_the_value_of_what_follows_and_a_terminated_one_in_nothing() -> None:
    made = made_of([[1]] * 2, rewards=[[1.0]] * 2, values=[[0.5]] * 2, bootstrap=[4.0, 0.0])
    assert gae(made, gamma=0.5, lam=1.0)[0].tolist() == [2.5, 0.5]


def test_a_turn_is_one_action_with_the_value_of_its_first_token() -> None:
    made = made_of(
        [[1, 1, 0, 1, 1, 1]],
        turns=[[1, 1, 1, 2, 2, 2]],
        rewards=[[0.5, 0.5, 9.0, 0.0, 0.0, 3.0]],
        values=[[1.0, 7.0, 9.0, 2.0, 7.0, 7.0]],
        bootstrap=[4.0],
    )
    advantages, returns = gae(made, gamma=0.5, lam=0.5, per_turn=True)
    first, second = by_definition([1.0, 3.0], [1.0, 2.0], 4.0, 0.5, 0.5)
    assert advantages.tolist() == [first, first, second, second, second]
    assert returns.tolist() == [first + 1, first + 1, second + 2, second + 2, second + 2]


def test_turns_of_one_token_are_tokens() -> None:
    made = drawn(2)
    one_each = replace(made, turns=np.arange(made.tokens))
    per_turn, per_token = (gae(one_each, gamma=0.9, lam=0.8, per_turn=by_turn) for by_turn in (True, False))
    assert np.array_equal(per_turn, per_token)


def test_the_longer_the_answer_the_further_the_outcome_is_carried_and_the_critic_has_a_lambda_of_its_own() -> None:
    made = drawn(3)

    def row(estimates: tuple[Doubles, Doubles], index: int) -> list[float]:
        return made.per_sample(estimates[0])[index].tolist()

    found = gae(made, gamma=0.9, lam=1.0, lam_length_alpha=0.5)
    lam = [0.0 if length <= 2 else 1 - 1 / (0.5 * length) for length in made.lengths.tolist()]
    assert len(set(lam)) > 2
    for index, own in enumerate(lam):
        assert row(found, index) == row(gae(made, gamma=0.9, lam=own), index)
    assert np.array_equal(found[1], gae(made, gamma=0.9, lam=1.0)[1])
