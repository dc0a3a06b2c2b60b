"""What no estimator's answer may depend on: the environment's tokens, the order of samples, what stands at a mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from rlhf.trainer import advantages
from tests.trainer.advantages.made import Batch, batch, garbled, permuted, rounded, widened, widened_to_double

Estimator = Callable[[Batch], NDArray[np.float64]]


def grpo(made: Batch) -> NDArray[np.float64]:
    estimate = partial(advantages.group_relative, normalize_by_std=True)
    return advantages.over_tokens(advantages.per_group(estimate, made.groups, made.scores), made.mask)


def rloo(made: Batch) -> NDArray[np.float64]:
    scores = advantages.per_group(advantages.leave_one_out, made.groups, made.scores)
    return advantages.over_tokens(scores, made.mask)


def opo(made: Batch) -> NDArray[np.float64]:
    lengths = made.mask.sum(1)
    scores = advantages.per_group(advantages.length_weighted, made.groups, made.scores, lengths)
    return advantages.over_tokens(scores, made.mask)


def per_turn(made: Batch) -> NDArray[np.float64]:
    made_of_turns = (made.rewards, made.values, made.mask, made.turns)
    return advantages.gae_per_turn(*made_of_turns, gamma=0.9, lam=0.8, bootstrap=made.bootstrap).advantages


def gae(made: Batch) -> advantages.Estimates:
    return advantages.gae(made.rewards, made.values, made.mask, gamma=0.9, lam=0.8, bootstrap=made.bootstrap)


def vtrace(made: Batch) -> advantages.Estimates:
    arrays = (made.logprobs, made.behaviour, made.rewards, made.values, made.mask)
    return advantages.vtrace(*arrays, discounts=0.9, bootstrap=made.bootstrap)


ESTIMATORS: dict[str, Estimator] = {
    "gae": lambda made: gae(made).advantages,
    "gae returns": lambda made: gae(made).returns,
    "gae per turn": per_turn,
    "grpo": grpo,
    "rloo": rloo,
    "opo": opo,
    "reinforce++": lambda made: advantages.reinforce_plus_plus(made.rewards, made.mask, gamma=0.9),
    "reinforce++-baseline": lambda made: advantages.reinforce_plus_plus_baseline(made.scores, made.groups, made.mask),
    "remax": lambda made: advantages.remax(made.rewards, made.bootstrap, made.mask),
    "outcome": lambda made: advantages.rewards_to_go(
        advantages.outcome_rewards(made.scores, made.mask), made.mask, gamma=0.9
    ),
    "kl in the reward": lambda made: advantages.kl_penalised(made.rewards, made.logprobs, made.mask, coefficient=0.1),
    "v-trace": lambda made: vtrace(made).advantages,
    "v-trace targets": lambda made: vtrace(made).returns,
    "whitening": lambda made: advantages.whiten(made.values, made.mask),
}

every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


@every_estimator
@pytest.mark.parametrize("seed", range(5))
def test_what_stands_at_a_masked_position_changes_nothing_and_the_answer_there_is_zero(
    estimate: Estimator, seed: int
) -> None:
    made = batch(seed)
    answer = estimate(made)
    assert np.array_equal(estimate(garbled(made)), answer)
    assert not answer[made.mask == 0].any()


@every_estimator
@pytest.mark.parametrize("seed", range(5))
def test_inserting_tokens_of_the_environment_leaves_the_actions_as_they_were(estimate: Estimator, seed: int) -> None:
    made = batch(seed)
    longer = widened(made, at=1 + seed, tokens=1 + 2 * seed)
    assert np.array_equal(estimate(longer)[longer.mask > 0], estimate(made)[made.mask > 0])


@every_estimator
@pytest.mark.parametrize("seed", range(5))
def test_permuting_the_samples_permutes_the_answer(estimate: Estimator, seed: int) -> None:
    made = batch(seed)
    order = np.random.default_rng(seed).permutation(made.scores.size)
    np.testing.assert_allclose(estimate(permuted(made, order)), estimate(made)[order], rtol=1e-12, atol=1e-12)


@every_estimator
def test_numbers_in_single_precision_are_reckoned_with_in_double(estimate: Estimator) -> None:
    made = rounded(batch(1))
    answer = estimate(made)
    assert answer.dtype == np.float64
    assert np.array_equal(answer, estimate(widened_to_double(made)))


@pytest.mark.parametrize("name", ["gae", "gae per turn", "remax", "v-trace"])
def test_an_episode_alone_is_estimated_as_in_a_batch(name: str) -> None:
    made = batch(3)
    for row in range(made.scores.size):
        alone = ESTIMATORS[name](permuted(made, np.array([row])))
        assert np.array_equal(alone[0], ESTIMATORS[name](made)[row])
