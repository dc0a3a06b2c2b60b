"""What no estimator's answer may depend on: the order of samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.credit import estimators
from tests.trainer.credit.made import drawn, permuted, reordered

gae = partial(estimators.gae, gamma=0.9, lam=0.8)
vtrace = partial(estimators.vtrace, gamma=0.9, rho_bar=1.0, c_bar=1.0)
ESTIMATORS: dict[str, Callable[[Batch], NDArray[np.float64]]] = {
    "gae": lambda made: gae(made)[0],
    "gae returns": lambda made: gae(made)[1],
    "gae per turn": lambda made: gae(made, per_turn=True)[0],
    "gae by length": lambda made: gae(made, lam_length_alpha=0.4)[0],
    "grpo": lambda made: estimators.group_relative(made, normalize_by_std=True),
    "rloo": lambda made: estimators.leave_one_out(made),
    "opo": lambda made: estimators.length_weighted(made),
    "reinforce++": lambda made: estimators.reinforce_pp(made, gamma=0.9),
    "reinforce++-baseline": lambda made: estimators.reinforce_pp_baseline(made),
    "remax": lambda made: estimators.remax(made),
    "v-trace": lambda made: vtrace(made)[0],
    "v-trace targets": lambda made: vtrace(made)[1],
}

every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


@every_estimator
@pytest.mark.parametrize("seed", range(5))
def test_permuting_the_samples_permutes_the_answer(estimate: Callable[[Batch], NDArray[np.float64]], seed: int) -> None:
    made = drawn(seed)
    order = np.random.default_rng(seed).permutation(made.scores.size)
    expected = reordered(made, estimate(made), order)
    np.testing.assert_allclose(estimate(permuted(made, order)), expected, rtol=1e-12, atol=1e-12)
