"""The losses: tensors in, `(loss, metrics)` out. Pure, importable as a library, no engine and no rank in sight.

All tensors are `[A]` over the ACTION tokens of one micro-batch. The losses of all micro-batches of an optimizer step
add up to the loss of the step, because each divides by the same global `denominator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a loss saw, in a form that adds up over micro-batches and ranks: `sums` are totals over tokens, each with
    the same number of tokens `count` behind it; `maxima` are largest values. Tensors, so that nothing is awaited."""

    count: int
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)


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
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    per_token = -surrogate if importance is None else -surrogate * importance
    sums = {
        "clip_fraction_low": ((ratio < 1 - clip_low) & (advantages < 0)).float().sum(),
        "clip_fraction_high": ((ratio > 1 + clip_high) & (advantages > 0)).float().sum(),
    }
    if reference_logprobs is not None:
        kl = k3(reference_logprobs - logprobs)
        per_token = per_token + kl_coefficient * kl
        sums["kl_reference"] = kl.detach().sum()
    loss = (per_token * weights).sum() / denominator
    return loss, Metrics(logprobs.numel(), sums, {"ratio_max": _largest(ratio.detach())})


def sft_loss(logprobs: Tensor, weights: Tensor, denominator: float) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood of the response tokens, weighted and divided like `policy_loss`."""
    loss = -(logprobs * weights).sum() / denominator
    return loss, Metrics(logprobs.numel(), {"nll": -logprobs.detach().sum()})


def k3(log_ratio: Tensor) -> Tensor:
    """Per-token estimate `exp(x) - x - 1` of KL(p, q) with `x = log q - log p` on samples of p: unbiased, never
    negative (Schulman, "Approximating KL divergence", 2020)."""
    return torch.expm1(log_ratio) - log_ratio


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
        logprobs.numel(), {"logprob_difference": difference.sum()}, {"logprob_difference_max": _largest(difference)}
    )


def _largest(values: Tensor) -> Tensor:
    return values.max() if values.numel() else values.new_zeros(())
