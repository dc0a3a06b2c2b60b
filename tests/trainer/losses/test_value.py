"""The critic's loss and the entropy, against plain Python in float64."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf.models.head import chosen_logprobs
from rlhf.trainer.losses import value_loss
from tests.trainer.losses.made import ADVANTAGES, NEW, OLD, assert_equal, table


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_is_half_the_larger_of_two_squares(clip: float | None) -> None:
    def expected(row: int, column: int) -> float:
        value, old, target = (float(given[row, column]) for given in (NEW, OLD, ADVANTAGES))
        held = value if clip is None else old + min(max(value - old, -clip), clip)
        return max((value - target) ** 2, (held - target) ** 2) / 2

    assert_equal(value_loss(NEW, OLD, ADVANTAGES, clip), table(expected))


@pytest.mark.parametrize("up", [1.0, -1.0])
def test_a_value_that_has_moved_beyond_the_clip_towards_its_target_learns_no_more(up: float) -> None:
    values = torch.tensor([0.5 * up, -0.5 * up], requires_grad=True)
    losses = value_loss(values, torch.zeros(2), torch.full((2,), up), clip=0.2)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([0.8**2 / 2, 1.5**2 / 2])
    assert values.grad.tolist() == [0.0, -1.5 * up]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_entropy_is_that_of_the_tempered_distribution_with_its_gradient(temperature: float) -> None:
    numbers = [0.5, -1.0, 3.0, 0.0]
    logits = torch.tensor([numbers], requires_grad=True)
    _, found = chosen_logprobs(logits, torch.tensor([1]), temperature, entropy_gradient=True)
    found.sum().backward()
    weights = [math.exp(x / temperature) for x in numbers]
    shares = [weight / sum(weights) for weight in weights]
    expected = -sum(p * math.log(p) for p in shares)
    slopes = [-p * (math.log(p) + expected) / temperature for p in shares]
    assert found.tolist() == [pytest.approx(expected, rel=1e-6)]
    assert logits.grad[0].tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-7)
