"""The estimators of one group against plain Python, and what a group without comparison is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf.trainer.arrays import Doubles
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.credit.estimators import best_of_group, group_relative, leave_one_out, length_weighted
from tests.trainer.credit.made import scored

rewards = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)
ESTIMATORS: dict[str, Callable[[Batch], Doubles]] = {
    "grpo": partial(group_relative, normalize_by_std=True),
    "dr_grpo": partial(group_relative, normalize_by_std=False),
    "rloo": leave_one_out,
    "opo": length_weighted,
    "best": partial(best_of_group, normalize_by_std=True),
}


def advantages(name: str, values: list[float], groups: list[int] | int = 0) -> list[float]:
    """Of episodes of 1, 2, 3, ... tokens."""
    made = scored(values, range(1, len(values) + 1), groups)
    found = ESTIMATORS[name](made)
    assert found.dtype == np.float64
    return found[made.offsets[:-1]].tolist()


@pytest.mark.parametrize("name", ESTIMATORS)
@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_equal_rewards_and_a_group_of_one_are_exactly_zero(name: str, value: float, size: int) -> None:
    assert not any(advantages(name, [value] * size))


@given(rewards)
def test_leave_one_out_is_the_distance_from_the_mean_of_the_others(values: list[float]) -> None:
    others = [values[:i] + values[i + 1 :] for i in range(len(values))]
    expected = [v - math.fsum(o) / len(o) for v, o in zip(values, others, strict=True)]
    np.testing.assert_allclose(advantages("rloo", values), expected, rtol=1e-9, atol=1e-9)


@given(rewards)
def test_the_length_weighted_baseline_counts_every_reward_once_a_token(values: list[float]) -> None:
    tokens = [value for length, value in enumerate(values, start=1) for _ in range(length)]
    expected = [v - math.fsum(tokens) / len(tokens) for v in values]
    np.testing.assert_allclose(advantages("opo", values), expected, rtol=1e-9, atol=1e-9)


def test_the_best_sample_leads_by_its_distance_from_the_second_and_ties_lead_by_nothing() -> None:
    for values, lead in (([1, 4, 3], [0, 1, 0]), ([4, 1, 4], [0, 0, 0])):
        assert best_of_group(scored(values), normalize_by_std=False).tolist() == lead


def test_the_best_samples_lead_is_counted_in_sample_standard_deviations_and_the_epsilon() -> None:
    found = best_of_group(scored([1.0, 4.0, 3.0]), normalize_by_std=True, epsilon=0.5)
    assert found.tolist() == pytest.approx([0.0, 1.0 / (math.sqrt(7.0 / 3.0) + 0.5), 0.0])


def test_each_group_of_a_shuffled_batch_is_estimated_on_its_own() -> None:
    assert advantages("rloo", [1.0, 2.0, 3.0, 9.0, 6.0], [7, 3, 7, 5, 3]) == [-2.0, -4.0, 2.0, 0.0, 4.0]
