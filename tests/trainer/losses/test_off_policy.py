"""Weights, rejection and mismatch, against plain Python in float64."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf.trainer.losses.off_policy import masked_ratios, mismatch, ratio, truncated, within_bounds
from tests.trainer.losses.made import BEHAVIOUR, LENGTH, MASK, OLD, assert_equal, sequences_of, table, tokens

TOKENS = (OLD[MASK], BEHAVIOUR[MASK], sequences_of(MASK))


def log_ratio(row: int, column: int) -> float:
    return float(OLD[row, column] - BEHAVIOUR[row, column])


def logs(row: int) -> list[float]:
    return [log_ratio(row, column) for column in range(LENGTH) if MASK[row, column]]


BY_LEVEL = {
    "token": lambda r, c: math.exp(log_ratio(r, c)),
    "sequence": lambda r, c: math.exp(sum(logs(r))),
    "geometric": lambda r, c: math.exp(sum(logs(r)) / len(logs(r))),
}
levels = pytest.mark.parametrize("level", list(BY_LEVEL))


@levels
def test_ratios_are_of_tokens_their_product_or_their_geometric_mean(level: str) -> None:
    assert_equal(ratio(*TOKENS, level), table(BY_LEVEL[level]))


@levels
def test_truncated_weights_are_cut_to_the_bounds_and_masked_ones_dropped(level: str) -> None:
    ratios = ratio(*TOKENS, level)
    one = BY_LEVEL[level]
    assert_equal(truncated(ratios, high=1.1), table(lambda r, c: min(one(r, c), 1.1)))
    assert_equal(truncated(ratios, low=0.8, high=1.1), table(lambda r, c: min(max(one(r, c), 0.8), 1.1)))
    assert_equal(
        masked_ratios(ratios, low=0.8, high=1.1), table(lambda r, c: one(r, c) if 0.8 <= one(r, c) <= 1.1 else 0.0)
    )
    inside = within_bounds(ratios, low=0.8, high=1.1)
    assert inside.any()
    assert not inside.all()


def test_a_ratio_that_is_just_a_bound_is_within_it() -> None:
    assert within_bounds(torch.tensor([0.5, 1.0, 2.0]), low=0.5, high=2.0).all()
    assert float(mismatch(OLD[0], OLD[0], high=1.0).sums["mismatch/truncated_fraction"]) == 0


def test_weights_carry_no_gradient() -> None:
    assert not ratio(OLD[MASK].clone().requires_grad_(), *TOKENS[1:], "token").requires_grad


def test_a_long_sequence_whose_product_overflows_is_cut_or_dropped_and_never_a_nan() -> None:
    ratios = ratio(torch.zeros(400), torch.full((400,), -3.0), torch.zeros(400, dtype=torch.int64), "sequence")
    assert torch.isinf(ratios).all()
    assert (truncated(ratios, high=2.0) == 2).all()
    assert (masked_ratios(ratios, high=2.0) == 0).all()


def test_mismatch_measures_both_divergences_and_the_clipped_tokens() -> None:
    seen = mismatch(OLD[MASK], BEHAVIOUR[MASK], high=1.2)
    differences = [log_ratio(*place) for place in tokens()]
    weights = [min(math.exp(x), 1.2) for x in differences]
    expected = {
        "mismatch/k1": -sum(differences),
        "mismatch/k3": sum(math.exp(x) - 1 - x for x in differences),
        "mismatch/weight_mean": sum(weights),
        "mismatch/weight_squared": sum(weight**2 for weight in weights),
        "mismatch/truncated_fraction": sum(math.exp(x) > 1.2 for x in differences),
    }
    assert {name: float(value) for name, value in seen.sums.items()} == pytest.approx(expected)
    assert seen.count == len(differences)
