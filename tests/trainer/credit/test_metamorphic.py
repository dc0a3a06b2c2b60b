"""What no estimator's answer may depend on: the environment's tokens, and the order of samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from rlhf.trainer.credit import estimators
from rlhf.trainer.credit.episodes import Episodes
from tests.trainer.credit.made import drawn, permuted, widened

gae = partial(estimators.gae, gamma=0.9, lam=0.8)
vtrace = partial(estimators.vtrace, gamma=0.9, rho_bar=1.0, c_bar=1.0)
ESTIMATORS: dict[str, Callable[[Episodes], NDArray[np.float64]]] = {
    "gae": lambda made: gae(made).advantages,
    "gae returns": lambda made: gae(made).returns,
    "gae per turn": lambda made: gae(made, per_turn=True).advantages,
    "gae by length": lambda made: gae(made, lam_length_alpha=0.4).advantages,
    "grpo": lambda made: estimators.group_relative(made, normalize_by_std=True).advantages,
    "rloo": lambda made: estimators.leave_one_out(made).advantages,
    "opo": lambda made: estimators.length_weighted(made).advantages,
    "reinforce++": lambda made: estimators.reinforce_pp(made, gamma=0.9).advantages,
    "reinforce++-baseline": lambda made: estimators.reinforce_pp_baseline(made).advantages,
    "remax": lambda made: estimators.remax(made).advantages,
    "v-trace": lambda made: vtrace(made).advantages,
    "v-trace targets": lambda made: vtrace(made).returns,
}

every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


@every_estimator
@pytest.mark.parametrize("seed", range(5))
def test_inserting_tokens_of_the_environment_leaves_the_actions_as_they_were(
    estimate: Callable[[Episodes], NDArray[np.float64]], seed: int
) -> None:
    made = drawn(seed)
    longer, answer = widened(made, at=1 + seed, tokens=1 + 2 * seed), estimate(made)
    assert np.array_equal(estimate(longer)[longer.mask], answer[made.mask])
    assert not answer[~made.mask].any()


@every_estimator
@pytest.mark.parametrize("seed", range(5))
def test_permuting_the_samples_permutes_the_answer(
    estimate: Callable[[Episodes], NDArray[np.float64]], seed: int
) -> None:
    made = drawn(seed)
    order = np.random.default_rng(seed).permutation(made.scores.size)
    np.testing.assert_allclose(estimate(permuted(made, order)), estimate(made)[order], rtol=1e-12, atol=1e-12)
