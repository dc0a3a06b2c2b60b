"""The losses of one micro-batch, as a rank calls them.

All tensors are `[A]` over the ACTION tokens of one micro-batch. The losses of all micro-batches of an optimizer step
add up to the loss of the step, because each divides by the same global `denominator`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.trainer.losses.actions import Actions
from rlhf.trainer.losses.kl import k3
from rlhf.trainer.losses.metrics import Metrics, largest
from rlhf.trainer.losses.policy import ppo


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    denominator: float,
    *,
    clip_low: float,
    clip_high: float,
    importance: Tensor | None = None,
    reference_logprobs: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> tuple[Tensor, Metrics]:
    """PPO's clipped surrogate (arXiv 1707.06347) with separate clip bounds (arXiv 2503.14476), summed over tokens with
    `weights` and divided by `denominator`.

    `importance` multiplies each token's surrogate (see `truncated_importance`). With `reference_logprobs`,
    `kl_coefficient` times the k3 estimate of KL(policy, reference) is added to every token.
    """
    actions = Actions(logprobs, old_logprobs, advantages, torch.ones_like(logprobs, dtype=torch.bool))
    per_token, seen = ppo(actions, clip_low=clip_low, clip_high=clip_high)
    sums = dict(seen.sums)
    if importance is not None:
        per_token = per_token * importance
    if reference_logprobs is not None:
        kl = k3(reference_logprobs - logprobs)
        per_token = per_token + kl_coefficient * kl
        sums["kl_reference"] = kl.detach().sum()
    return (per_token * weights).sum() / denominator, Metrics(seen.count, sums, seen.maxima)


def sft_loss(logprobs: Tensor, weights: Tensor, denominator: float) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood of the response tokens, weighted and divided like `policy_loss`."""
    loss = -(logprobs * weights).sum() / denominator
    return loss, Metrics(logprobs.numel(), {"nll": -logprobs.detach().sum()})


def truncated_importance(old_logprobs: Tensor, behaviour_logprobs: Tensor, cap: float) -> Tensor:
    """Weights `min(exp(old - behaviour), cap)` that correct for the engine's log-probs not being the learner's."""
    return torch.exp(old_logprobs - behaviour_logprobs).clamp(max=cap)


def off_policy_metrics(logprobs: Tensor, entropy: Tensor, behaviour_logprobs: Tensor) -> Metrics:
    """How far the policy is from the one that sampled: k3 KL(behaviour, policy), and entropy, in nats."""
    log_ratio = logprobs.detach() - behaviour_logprobs
    return Metrics(logprobs.numel(), {"approx_kl": k3(log_ratio).sum(), "entropy": entropy.sum()})


def engine_difference(logprobs: Tensor, behaviour_logprobs: Tensor) -> Metrics:
    """How far the learner's log-probs are from the engine's, before any step: mean and largest."""
    difference = (logprobs - behaviour_logprobs).abs()
    return Metrics(
        logprobs.numel(), {"logprob_difference": difference.sum()}, {"logprob_difference_max": largest(difference)}
    )
