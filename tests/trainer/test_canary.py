"""What the canary says of an engine."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf.trainer.canary import canary, difference, disagreement, staleness, tolerance_for

START = [np.zeros(3, np.float32), np.zeros(3, np.float32)]


def moved(by: float) -> list[np.ndarray]:
    """One log-prob of one sequence moved."""
    return [START[0], START[1] + np.array([0, by, 0], np.float32)]


def test_the_sequences_are_fixed_in_vocabulary_and_fit_the_context() -> None:
    one, other = (canary(50, 1000, 0.1) for _ in range(2))
    assert [s.tolist() for s in one.sequences] == [s.tolist() for s in other.sequences]
    assert [len(s) for s in one.sequences] == [24] * 4
    assert all(s.min() >= 0 and s.max() < 50 for s in one.sequences)
    assert {len(s) for s in canary(50, 16, 0.1).sequences} == {16}


def test_one_log_prob_that_is_off_is_a_disagreement() -> None:
    assert disagreement(moved(0.09), START, 0.1) is None
    assert "differ from the learner's by 0.2, tolerance 0.1" in str(disagreement(moved(0.2), START, 0.1))


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_agrees_with_nothing(broken: float) -> None:
    assert difference(moved(broken), moved(broken)) == float("inf")
    assert disagreement(moved(broken), moved(broken), 0.1)


def test_an_engine_that_stays_while_the_learner_moves_is_stale() -> None:
    assert staleness(START, START, moved(0.31), START, 0.1)
    assert staleness(moved(0.05), START, moved(0.31), START, 0.1)
    assert staleness(moved(0.31), START, moved(0.31), START, 0.1) is None


def test_a_learner_that_hardly_moved_makes_no_engine_stale() -> None:
    assert staleness(START, START, moved(0.29), START, 0.1) is None


def test_sixteen_bits_are_given_more_room() -> None:
    assert tolerance_for("float32") == 1e-4
    assert tolerance_for("bfloat16") == tolerance_for("float16") == 0.1
