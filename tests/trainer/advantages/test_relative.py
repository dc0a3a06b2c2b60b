"""The estimators of one group against plain Python, and what a group without comparison is worth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf.trainer.advantages import best_of_group, group_relative, leave_one_out, length_weighted, per_group

rewards = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)
ESTIMATORS: dict[str, Callable[[list[float]], np.ndarray]] = {
    "grpo": lambda values: group_relative(values, normalize_by_std=True),
    "dr_grpo": lambda values: group_relative(values, normalize_by_std=False),
    "rloo": leave_one_out,
    "opo": lambda values: length_weighted(values, range(1, len(values) + 1)),
    "best": lambda values: best_of_group(values, normalize_by_std=True),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_equal_rewards_and_a_group_of_one_are_exactly_zero(name: str, value: float, size: int) -> None:
    assert not ESTIMATORS[name]([value] * size).any()


@given(rewards)
def test_leave_one_out_is_the_distance_from_the_mean_of_the_others(values: list[float]) -> None:
    others = [values[:i] + values[i + 1 :] for i in range(len(values))]
    expected = [v - math.fsum(o) / len(o) for v, o in zip(values, others, strict=True)]
    np.testing.assert_allclose(leave_one_out(values), expected, rtol=1e-9, atol=1e-9)


@given(rewards)
def test_the_length_weighted_baseline_counts_every_reward_once_a_token(values: list[float]) -> None:
    tokens = [value for length, value in enumerate(values, start=1) for _ in range(length)]
    expected = [v - math.fsum(tokens) / len(tokens) for v in values]
    np.testing.assert_allclose(ESTIMATORS["opo"](values), expected, rtol=1e-9, atol=1e-9)


def test_the_best_sample_leads_by_its_distance_from_the_second_and_ties_lead_by_nothing() -> None:
    assert best_of_group([1.0, 4.0, 3.0], normalize_by_std=False).tolist() == [0.0, 1.0, 0.0]
    assert best_of_group([4.0, 1.0, 4.0], normalize_by_std=False).tolist() == [0.0, 0.0, 0.0]


def test_each_group_of_a_shuffled_batch_is_estimated_on_its_own() -> None:
    scattered = per_group(leave_one_out, [7, 3, 7, 5, 3], [1.0, 2.0, 3.0, 9.0, 6.0])
    assert scattered.tolist() == [-2.0, -4.0, 2.0, 0.0, 4.0]
