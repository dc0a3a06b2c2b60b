from __future__ import annotations

import pytest
import torch

from rlhf.trainer.losses import aggregate, denominator
from tests.trainer.losses.made import MASK, NEW, ROWS


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
        assert float(aggregate(NEW, MASK, name, constant_tokens=50.0)) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
@pytest.mark.parametrize("mask", [[[True]], [[False]]], ids=["one token", "nothing"])
def test_one_token_alone_and_nothing_at_all_are_divided_by_one(aggregation: str, mask: list[list[bool]]) -> None:
    assert denominator(torch.tensor(mask), aggregation) == 1.0


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_nothing_at_all_costs_nothing_and_still_has_a_gradient(aggregation: str) -> None:
    values = torch.full((2, 3), torch.nan).requires_grad_()
    loss = aggregate(values, torch.zeros(2, 3, dtype=torch.bool), aggregation)
    loss.backward()
    assert float(loss.detach()) == 0
    assert (values.grad == 0).all()
