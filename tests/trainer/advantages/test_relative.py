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


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("values", [[1, 3, 8, 4], [2, 2, 2], np.float32([0.1, 0.7, 0.2, 0.4])], ids=["1384", "2", "f4"])
def test_advantages_are_doubles_of_whatever_numbers_come_in(name: str, values: list[float]) -> None:
    answer = ESTIMATORS[name](values)
    assert answer.dtype == np.float64
    assert answer.tolist() == ESTIMATORS[name]([float(value) for value in values]).tolist()


def test_lengths_are_summed_in_double_precision() -> None:
    lengths = np.float32([0.1, 0.7, 0.3])
    assert np.array_equal(length_weighted([1, 2, 5], lengths), length_weighted([1, 2, 5], lengths.tolist()))


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


def test_the_best_samples_lead_is_counted_in_sample_standard_deviations_and_the_epsilon() -> None:
    advantages = best_of_group([1.0, 4.0, 3.0], normalize_by_std=True, epsilon=0.5)
    assert advantages.tolist() == pytest.approx([0.0, 1.0 / (math.sqrt(7.0 / 3.0) + 0.5), 0.0])


def test_an_estimator_gets_the_columns_of_its_group_in_double_precision() -> None:
    def centred(values: np.ndarray) -> np.ndarray:
        return values - values.mean()

    column = np.float32([0.1, 0.7, 0.2, 0.4])
    single, double = (per_group(centred, [1, 2, 1, 2], given) for given in (column, column.tolist()))
    assert single.tolist() == double.tolist()


def test_each_group_of_a_shuffled_batch_is_estimated_on_its_own() -> None:
    scattered = per_group(leave_one_out, [7, 3, 7, 5, 3], [1.0, 2.0, 3.0, 9.0, 6.0])
    assert scattered.tolist() == [-2.0, -4.0, 2.0, 0.0, 4.0]
