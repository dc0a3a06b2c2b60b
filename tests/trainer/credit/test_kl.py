"""KL estimators, their gradients, and controllers."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf.trainer.credit.kl import KLController, kl_estimate, kl_in_loss
from tests.trainer.losses.made import MASK, NEW, REFERENCE, assert_equal, table

VALUES = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}
GRADIENTS = {"k1": lambda d: 1.0, "k2": lambda d: d, "k3": lambda d: 1 - math.exp(-d)}


def distance(row: int, column: int) -> float:
    return float(NEW[row, column] - REFERENCE[row, column])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimators_have_the_values_and_gradients_of_the_table(estimator: str) -> None:
    logprobs = NEW.clone().requires_grad_()
    kl = kl_in_loss(logprobs[MASK] - REFERENCE[MASK], estimator)
    kl.sum().backward()
    assert_equal(kl, table(lambda r, c: VALUES[estimator](distance(r, c))))
    assert_equal(logprobs.grad, table(lambda r, c: GRADIENTS[estimator](distance(r, c))))
    exact = kl_in_loss(logprobs[MASK] - REFERENCE[MASK], estimator, exact_gradient=True)
    assert_equal(exact, table(lambda r, c: VALUES[estimator](distance(r, c))))
    in_numpy = kl_estimate((NEW - REFERENCE)[MASK].numpy(), estimator)
    assert_equal(torch.from_numpy(in_numpy), table(lambda r, c: VALUES[estimator](distance(r, c))))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_exact_gradient_is_that_of_the_divergence_itself_over_all_outcomes(estimator: str) -> None:
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.5, -0.5, 1.0], dtype=torch.float64), 0)
    logprobs = torch.log_softmax(logits, 0)
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    kl = kl_in_loss(logprobs - reference, estimator, exact_gradient=True)
    (found,) = torch.autograd.grad((logprobs.exp().detach() * kl).sum(), logits)
    torch.testing.assert_close(found, expected)


def test_the_adaptive_coefficient_follows_its_target_by_a_fifth_at_most_a_horizon() -> None:
    controller = KLController(0.2, target=6.0, horizon=1000)
    assert controller.after(6.0, 500).coefficient == pytest.approx(0.2)
    assert controller.after(6.6, 500).coefficient == pytest.approx(0.2 * (1 + 0.1 * 0.5))
    assert controller.after(60.0, 1000).coefficient == pytest.approx(0.24)
    assert controller.after(0.0, 1000).coefficient == pytest.approx(0.16)


def test_the_fixed_coefficient_stays() -> None:
    assert KLController(0.05, None, 1000).after(9.0, 512).coefficient == 0.05
