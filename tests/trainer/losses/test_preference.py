"""Losses on preferences, against plain Python in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlhf.trainer.losses.preference import ScoredPairs, bradley_terry, divergence, dpo, implicit_reward, ipo, kto
from rlhf.trainer.pair_learner import kto_baseline

RNG = np.random.default_rng(3)
PAIRS = 7
COLUMNS = RNG.normal(-20, 4, (4, PAIRS))
CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED = (torch.tensor(column) for column in COLUMNS)
MARGINS = [float(a - b - c + d) for a, c, b, d in COLUMNS.T]


def pairs() -> ScoredPairs:
    return ScoredPairs(CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dpo_is_the_log_likelihood_of_the_order_of_a_pair(smoothing: float) -> None:
    expected = [-(1 - smoothing) * log_sigmoid(0.3 * h) - smoothing * log_sigmoid(-0.3 * h) for h in MARGINS]
    assert dpo(pairs(), 0.3, smoothing).tolist() == pytest.approx(expected)


def test_ipo_is_the_square_of_the_distance_to_its_margin_also_by_the_token() -> None:
    assert ipo(pairs(), 0.3).tolist() == pytest.approx([(h - 1 / 0.6) ** 2 for h in MARGINS])
    lengths = torch.arange(2, 2 + PAIRS), torch.arange(9, 9 + PAIRS)
    expected = [
        ((a - b) / long - (c - d) / short - 1 / 0.6) ** 2
        for (a, c, b, d), long, short in zip(COLUMNS.T, *(each.tolist() for each in lengths), strict=True)
    ]
    assert ipo(pairs().per_token(*lengths), 0.3).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("shift", [-30.0, 1.0])
def test_kto_compares_each_answer_with_a_baseline_that_is_never_negative(shift: float) -> None:
    desirable = torch.tensor([True, False, True, True, False, False, True])
    seen = divergence(CHOSEN + shift, CHOSEN)
    baseline = torch.tensor(kto_baseline({"pairs/log_ratio": float(seen.sums["pairs/log_ratio"]) / seen.count}))
    assert float(baseline) == pytest.approx(max(shift, 0.0))
    losses = kto(CHOSEN, REFERENCE_CHOSEN, desirable, baseline, 0.3, desirable_weight=1.3, undesirable_weight=0.8)
    expected = []
    for new, old, good in zip(CHOSEN.tolist(), REFERENCE_CHOSEN.tolist(), desirable.tolist(), strict=True):
        gain = 0.3 * (new - old - float(baseline))
        expected.append(1.3 * (1 - sigmoid(gain)) if good else 0.8 * (1 - sigmoid(-gain)))
    assert losses.tolist() == pytest.approx(expected)


def test_bradley_terry_asks_for_a_margin_and_centres_the_scores() -> None:
    chosen, rejected, margin = (torch.tensor(RNG.normal(0, 2, PAIRS)) for _ in range(3))
    expected = [
        -log_sigmoid(c - r - m) + 0.01 * (c + r) ** 2
        for c, r, m in zip(chosen.tolist(), rejected.tolist(), margin.tolist(), strict=True)
    ]
    assert bradley_terry(chosen, rejected, margin, 0.01).tolist() == pytest.approx(expected)


def test_scores_far_apart_give_finite_losses_and_gradients() -> None:
    rejected = torch.tensor([1e4]).requires_grad_()
    loss = bradley_terry(torch.tensor([-1e4]), rejected)
    loss.sum().backward()
    assert loss.tolist() == [2e4]
    assert rejected.grad.tolist() == [1.0]


def test_the_implicit_reward_is_beta_times_the_log_ratio_and_no_part_of_the_graph() -> None:
    reward = implicit_reward(CHOSEN.clone().requires_grad_(), REFERENCE_CHOSEN, 0.3)
    assert not reward.requires_grad
    assert reward.tolist() == pytest.approx([0.3 * (a - b) for a, _, b, _ in COLUMNS.T])
