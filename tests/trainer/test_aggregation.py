from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf.trainer.aggregation import denominator, token_weights
from tests.trainer.losses.made import MASK, NEW, ROWS
from tests.trainer.losses.summed import summed

AGGREGATIONS = ("token_mean", "sequence_mean", "sequence_sum", "constant")


def rows() -> list[list[float]]:
    return [[float(x) for x in NEW[row][MASK[row]]] for row in range(ROWS) if MASK[row].any()]


def test_each_aggregation_is_its_sum_in_plain_python() -> None:
    kept = rows()
    everything = [x for row in kept for x in row]
    expected = {
        "token_mean": sum(everything) / len(everything),
        "sequence_mean": sum(sum(row) / len(row) for row in kept) / len(kept),
        "sequence_sum": sum(everything) / len(kept),
        "constant": sum(everything) / (len(kept) * 50.0),
    }
    assert len(kept) == ROWS - 1
    for name, value in expected.items():
        assert float(summed(NEW, MASK, name, constant_tokens=50.0)) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("lengths", [[1], []], ids=["one token", "nothing"])
def test_one_token_alone_and_nothing_at_all_are_divided_by_one(aggregation: str, lengths: list[int]) -> None:
    assert denominator(np.array(lengths, np.int64), aggregation) == 1.0


def test_nothing_at_all_is_divided_by_the_constant_of_one_sample() -> None:
    assert denominator(np.zeros(0, np.int64), "constant", 50.0) == 50.0


def test_a_sample_without_a_token_has_a_weight_that_is_finite() -> None:
    assert token_weights(np.array([0, 1, 4]), "sequence_mean").tolist() == [1.0, 1.0, 0.25]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nothing_at_all_costs_nothing_and_still_has_a_gradient(aggregation: str) -> None:
    values = torch.full((2, 3), torch.nan).requires_grad_()
    loss = summed(values, torch.zeros(2, 3, dtype=torch.bool), aggregation)
    loss.backward()
    assert float(loss.detach()) == 0
    assert (values.grad == 0).all()
