"""The loss of one micro-batch, as a rank calls it.

Columns are `[A]` over the ACTION tokens of one micro-batch. The losses of all micro-batches of an optimizer step sum to
the loss of the step, because each divides by the same global `denominator`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf.trainer.config import CorrectionConfig, KLConfig, LossConfig
from rlhf.trainer.credit.kl import kl_estimate, kl_in_loss
from rlhf.trainer.credit.registry import LOSSES, called_with
from rlhf.trainer.losses.actions import Actions, LossMetrics, largest
from rlhf.trainer.losses.off_policy import corrected, masked_ratios, ratio, truncated

PolicyLoss = Callable[[Actions], tuple[Tensor, LossMetrics]]
"""A policy loss: the losses of tokens `[A]` and metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The recipe's loss: the policy loss of a token, KL and entropy terms, and the correction of tokens that weights
    other than the proximal ones sampled (None: not needed, or the ratio includes it). Without `kl` the loss has no such
    term. `reads_entropies` is whether a gradient flows through them."""

    policy: PolicyLoss
    kl: KLConfig | None = None
    entropy_coefficient: float = 0.0
    reads_entropies: bool = False
    correction: CorrectionConfig | None = None


def policy_loss_of(config: LossConfig) -> PolicyLoss:
    """Return the recipe's policy loss. Raises `ConfigError` for a user-defined one that cannot be imported, or does not
    accept `loss.arguments`."""
    loss: PolicyLoss = called_with(LOSSES, config.policy, "trainer.loss.policy", config, config.arguments)
    return loss


def policy_loss(
    actions: Actions, denominator: float, objective: Objective, *, kl_coefficient: float
) -> tuple[Tensor, LossMetrics]:
    """Corrected losses of tokens, plus `kl_coefficient` times the KL term, minus the entropy bonus; summed with the
    tokens' weights and divided by `denominator`."""
    per_token, seen = objective.policy(actions)
    sums = dict(seen.sums)
    if objective.correction is not None:
        importance = importance_weights(actions, objective.correction)
        sums |= {
            "correction/weight_mean": importance.sum(),
            "correction/abs_dev": (importance - 1).abs().sum(),
            "correction/masked_fraction": (importance == 0).float().sum(),
        }
        per_token = corrected(per_token, importance)
    if objective.kl is not None and actions.reference_logprobs is not None:
        d = actions.logprobs - actions.reference_logprobs
        kl = kl_in_loss(d, objective.kl.estimator, exact_gradient=objective.kl.exact_gradient)
        per_token = per_token + kl_coefficient * kl
        sums["policy/kl_reference"] = kl.detach().sum()
    if objective.entropy_coefficient:
        per_token = per_token - objective.entropy_coefficient * actions.entropies
    return aggregate(per_token, actions.loss_weights, denominator), LossMetrics(seen.count, sums, seen.maxima)


def aggregate(per_token: Tensor, weights: Tensor, denominator: float) -> Tensor:
    """Return a part of the loss of a step, as defined in `rlhf.trainer.aggregation`: `per_token` and `weights` are
    those of the part's tokens `[A]`, the denominator is that of the whole step."""
    return (per_token * weights).sum() / denominator


def importance_weights(actions: Actions, correction: CorrectionConfig) -> Tensor:
    """Ratio of proximal to behaviour policy for every token, bounded as the recipe says, without gradient: `[A]`."""
    if correction.method == "none":
        return torch.ones_like(actions.proximal_logprobs)
    ratios = ratio(actions.proximal_logprobs, actions.behaviour_logprobs, actions.sequences, correction.level)
    if correction.method == "truncate":
        return truncated(ratios, high=correction.high)
    return masked_ratios(ratios, low=correction.low, high=correction.high)


def sft_loss(logprobs: Tensor, weights: Tensor, denominator: float) -> tuple[Tensor, LossMetrics]:
    """Negative log-likelihood of the response tokens, weighted and divided like `policy_loss`."""
    return aggregate(-logprobs, weights, denominator), LossMetrics(
        logprobs.numel(), {"sft/nll": -logprobs.detach().sum()}
    )


def off_policy_metrics(logprobs: Tensor, entropy: Tensor, behaviour_logprobs: Tensor) -> LossMetrics:
    """Divergence of the policy from the one that sampled: k3 of KL(behaviour, policy), and entropy, in nats."""
    kl = kl_estimate(behaviour_logprobs - logprobs.detach(), "k3")
    return LossMetrics(logprobs.numel(), {"policy/approx_kl": kl.sum(), "policy/entropy": entropy.detach().sum()})


def engine_difference(logprobs: Tensor, behaviour_logprobs: Tensor) -> LossMetrics:
    """Difference between learner and engine at the same weights, before any step: mean and largest difference of
    log-probs."""
    difference = (logprobs - behaviour_logprobs).abs()
    sums = {"policy/logprob_difference": difference.sum()}
    return LossMetrics(logprobs.numel(), sums, {"policy/logprob_difference_max": largest(difference)})
