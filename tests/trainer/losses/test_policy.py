"""Policy losses, token by token against plain Python in float64."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf.trainer.losses.off_policy import corrected
from rlhf.trainer.losses.policy import cispo, gspo, policy_gradient, ppo, sapo
from tests.trainer.losses.made import ADVANTAGES, LENGTH, MASK, NEW, OLD, actions, assert_equal, flat, table, tokens


def ratio(row: int, column: int) -> float:
    return math.exp(float(NEW[row, column] - OLD[row, column]))


def advantage(row: int, column: int) -> float:
    return float(ADVANTAGES[row, column])


def surrogate(r: float, a: float, low: float, high: float, dual: float | None = None) -> float:
    loss = max(-r * a, -min(max(r, 1 - low), 1 + high) * a)
    return min(loss, -dual * a) if dual is not None and a < 0 else loss


def sequence_ratio(row: int) -> float:
    logs = [float(NEW[row, column] - OLD[row, column]) for column in range(LENGTH) if MASK[row, column]]
    return math.exp(sum(logs) / len(logs))


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_ppo_is_the_smaller_of_two_surrogates_and_the_dual_clip_bounds_it(dual_clip: float | None) -> None:
    per_token, _ = ppo(actions(), clip_low=0.2, clip_high=0.28, dual_clip=dual_clip)
    assert_equal(per_token, table(lambda r, c: surrogate(ratio(r, c), advantage(r, c), 0.2, 0.28, dual_clip)))


def test_decoupled_ppo_weights_the_surrogate_of_each_token() -> None:
    weights = torch.full_like(NEW, 0.7)
    weights[2] = 0.0
    per_token = corrected(ppo(actions(), clip_low=0.2, clip_high=0.28)[0], weights[MASK])
    expected = table(lambda r, c: (0.0 if r == 2 else 0.7) * surrogate(ratio(r, c), advantage(r, c), 0.2, 0.28))
    assert_equal(per_token, expected)


def test_gspo_is_ppo_of_the_geometric_mean_of_the_ratios_of_a_sequence() -> None:
    per_token, _ = gspo(actions(), clip_low=0.1, clip_high=0.15)
    assert_equal(per_token, table(lambda r, c: surrogate(sequence_ratio(r), advantage(r, c), 0.1, 0.15)))


def test_the_gradient_of_gspo_with_one_advantage_a_sequence_is_that_of_the_sequence_ratio() -> None:
    logprobs = NEW.clone().requires_grad_()
    constant = flat(MASK, logprobs, OLD, torch.ones_like(NEW))
    gspo(constant, clip_low=0.9, clip_high=9.0)[0].sum().backward()
    expected = table(lambda r, c: -sequence_ratio(r))
    assert_equal(logprobs.grad, expected)


def test_cispo_weights_log_probs_by_the_clipped_ratio_and_holds_the_weight_constant() -> None:
    logprobs = NEW.clone().requires_grad_()
    per_token, metrics = cispo(actions(logprobs), clip_low=0.3, clip_high=0.4)
    per_token.sum().backward()

    def weight(row: int, column: int) -> float:
        return min(max(ratio(row, column), 0.7), 1.4)

    assert_equal(per_token, table(lambda r, c: -weight(r, c) * advantage(r, c) * float(NEW[r, c])))
    assert_equal(logprobs.grad, table(lambda r, c: -weight(r, c) * advantage(r, c)))
    assert float(metrics.sums["policy/clip_fraction_low"]) == sum(ratio(*place) < 0.7 for place in tokens())
    assert float(metrics.sums["policy/clip_fraction_high"]) == sum(ratio(*place) > 1.4 for place in tokens())


def test_sapo_gates_tokens_softly_and_has_the_gradient_of_a_ratio_on_policy() -> None:
    def gate(row: int, column: int) -> float:
        temperature = 1.0 if advantage(row, column) > 0 else 1.05
        return 4 / temperature / (1 + math.exp(-temperature * (ratio(row, column) - 1)))

    per_token, _ = sapo(actions(), temperature_positive=1.0, temperature_negative=1.05)
    assert_equal(per_token, table(lambda r, c: -gate(r, c) * advantage(r, c)))
    logprobs = OLD.clone().requires_grad_()
    sapo(actions(logprobs), temperature_positive=1.0, temperature_negative=1.05)[0].sum().backward()
    assert_equal(logprobs.grad, table(lambda r, c: -advantage(r, c)))


def test_the_plain_policy_gradient_is_the_log_prob_times_the_advantage() -> None:
    assert_equal(policy_gradient(actions())[0], table(lambda r, c: -advantage(r, c) * float(NEW[r, c])))


def test_clip_metrics_count_the_tokens_that_lost_their_gradient() -> None:
    logprobs = NEW.clone().requires_grad_()
    per_token, metrics = ppo(actions(logprobs), clip_low=0.2, clip_high=0.28, dual_clip=1.5)
    per_token.sum().backward()
    lost = int((logprobs.grad[MASK] == 0).sum())
    names = ("policy/clip_fraction_low", "policy/clip_fraction_high", "policy/clip_fraction_dual")
    assert [float(metrics.sums[name]) > 0 for name in names] == [True] * 3
    assert sum(float(metrics.sums[name]) for name in names) == lost
    assert metrics.count == len(tokens())
    assert float(metrics.maxima["policy/ratio_max"]) == pytest.approx(max(ratio(*place) for place in tokens()))
