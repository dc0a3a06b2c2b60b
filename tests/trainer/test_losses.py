import math

import numpy as np
import pytest
import torch

from rlhf.models.policy import chosen_logprobs
from rlhf.trainer.config import CorrectionConfig, KLConfig, LossConfig
from rlhf.trainer.losses import (
    Actions,
    LossMetrics,
    Objective,
    engine_difference,
    k3,
    off_policy_metrics,
    policy_loss,
    policy_loss_of,
    sft_loss,
)

RNG = np.random.default_rng(0)
SIZE = 200
NEW = RNG.normal(-2, 0.5, SIZE)
OLD = NEW + RNG.normal(0, 0.3, SIZE)
REFERENCE = NEW + RNG.normal(0, 0.3, SIZE)
ADVANTAGES = RNG.normal(0, 1, SIZE)
WEIGHTS = RNG.uniform(0.1, 1, SIZE)


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def tokens(part: slice = slice(None), *, logprobs: torch.Tensor | None = None, **columns: np.ndarray) -> Actions:
    """The made tokens, one sequence a ten."""
    given = {"behaviour_logprobs": OLD, "old_logprobs": OLD, "advantages": ADVANTAGES, "weights": WEIGHTS} | columns
    return Actions(
        logprobs=tensor(NEW[part]) if logprobs is None else logprobs,
        entropies=torch.zeros(len(NEW[part])),
        sequences=torch.arange(SIZE)[: len(NEW[part])] // 10,
        **{name: tensor(column[part]) for name, column in given.items()},
    )


def clipped_loss(
    given: Actions, denominator: float, kl_coefficient: float = 0.0, **more: CorrectionConfig
) -> tuple[torch.Tensor, LossMetrics]:
    objective = Objective(policy=policy_loss_of(LossConfig(clip_low=0.2, clip_high=0.28)), kl=KLConfig(), **more)
    return policy_loss(given, denominator, objective, kl_coefficient=kl_coefficient)


def brute_force(kl_coefficient: float, importance: np.ndarray) -> float:
    """The same loss token by token, in float64 and plain Python."""
    total = 0.0
    for new, old, reference, advantage, weight, correction in zip(
        NEW, OLD, REFERENCE, ADVANTAGES, WEIGHTS, importance, strict=True
    ):
        ratio = math.exp(new - old)
        surrogate = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
        kl = math.exp(reference - new) - (reference - new) - 1
        total += weight * (-correction * surrogate + kl_coefficient * kl)
    return total / 77.0


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_policy_loss_equals_a_brute_force_sum(kl_coefficient: float, weighted: bool) -> None:
    behaviour = OLD + 0.5 * np.sin(np.arange(SIZE))
    correction = {"correction": CorrectionConfig(high=1.3)} if weighted else {}
    given = tokens(behaviour_logprobs=behaviour, reference_logprobs=REFERENCE)
    loss, _ = clipped_loss(given, 77.0, kl_coefficient, **correction)
    expected = np.minimum(np.exp(OLD - behaviour), 1.3) if weighted else np.ones(SIZE)
    assert float(loss) == pytest.approx(brute_force(kl_coefficient, expected), rel=1e-5)


def test_the_gradient_of_clipped_tokens_is_zero_and_of_others_the_ratio_times_the_advantage() -> None:
    logprobs = tensor(NEW).requires_grad_()
    loss, _ = clipped_loss(tokens(logprobs=logprobs, weights=np.ones(SIZE)), 1.0)
    loss.backward()
    ratio = np.exp(NEW - OLD)
    clipped = ((ratio > 1.28) & (ADVANTAGES > 0)) | ((ratio < 0.8) & (ADVANTAGES < 0))
    assert 0 < clipped.sum() < SIZE
    np.testing.assert_allclose(logprobs.grad, np.where(clipped, 0, -ratio * ADVANTAGES), rtol=1e-4, atol=1e-6)


def test_metrics_count_what_was_clipped_and_add_up_over_pieces() -> None:
    def metrics(part: slice) -> dict[str, float]:
        _, seen = clipped_loss(tokens(part), 1.0)
        return {name: float(total) for name, total in seen.sums.items()} | {"count": seen.count}

    whole, first, second = metrics(slice(None)), metrics(slice(0, 60)), metrics(slice(60, None))
    assert whole == {name: pytest.approx(first[name] + second[name]) for name in whole}
    ratio = np.exp(NEW - OLD)
    assert whole["policy/clip_fraction_high"] == ((ratio > 1.28) & (ADVANTAGES > 0)).sum()
    assert whole["policy/clip_fraction_low"] == ((ratio < 0.8) & (ADVANTAGES < 0)).sum()


def test_an_empty_micro_batch_costs_nothing_and_still_has_a_gradient() -> None:
    empty = torch.zeros(0, requires_grad=True)
    loss, metrics = clipped_loss(tokens(slice(0, 0), logprobs=empty), 5.0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert metrics.count == 0
    assert float(metrics.maxima["policy/ratio_max"]) == 0


def test_how_much_a_correction_changes_is_measured_by_the_weights_that_were_used() -> None:
    behaviour = OLD + RNG.normal(0, 0.5, SIZE)
    weights = np.minimum(np.exp(OLD - behaviour), 1.5)
    _, metrics = clipped_loss(tokens(behaviour_logprobs=behaviour), 1.0, correction=CorrectionConfig(high=1.5))
    assert float(metrics.sums["correction/weight_mean"]) == pytest.approx(weights.sum(), rel=1e-5)
    assert float(metrics.sums["correction/abs_dev"]) == pytest.approx(np.abs(weights - 1).sum(), rel=1e-5)
    _, same = clipped_loss(tokens(), 1.0, correction=CorrectionConfig())
    assert float(same.sums["correction/abs_dev"]) == 0.0


def test_sft_loss_is_the_mean_negative_log_likelihood() -> None:
    loss, metrics = sft_loss(tensor(NEW), torch.ones(SIZE), float(SIZE))
    assert float(loss) == pytest.approx(-NEW.mean(), rel=1e-6)
    assert float(metrics.sums["sft/nll"]) == pytest.approx(-NEW.sum(), rel=1e-6)


def test_k3_is_never_negative_and_estimates_the_divergence() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    per_outcome = k3((q / p).log())
    assert (per_outcome >= 0).all()
    assert float((p * per_outcome).sum()) == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)


def test_difference_to_the_engine_is_measured_in_mean_and_maximum() -> None:
    metrics = engine_difference(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]), 2.0)
    assert float(metrics.sums["policy/logprob_difference"]) == 0.5
    assert float(metrics.maxima["policy/logprob_difference_max"]) == 0.5
    same = off_policy_metrics(torch.tensor([-1.0]), torch.tensor([0.3]), torch.tensor([-1.0]))
    assert float(same.sums["policy/approx_kl"]) == 0.0


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_logprobs_equal_a_float64_softmax_at_the_sampling_temperature(
    temperature: float, dtype: torch.dtype
) -> None:
    logits = torch.tensor(RNG.normal(0, 3, (50, 40))).to(dtype)
    ids = torch.tensor(RNG.integers(0, 40, 50))
    logprobs, entropy = chosen_logprobs(logits, ids, temperature)
    exact = torch.log_softmax(logits.double() / temperature, -1)
    torch.testing.assert_close(logprobs.double(), exact.gather(1, ids[:, None])[:, 0], rtol=0, atol=2e-6)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), rtol=0, atol=5e-6)
