"""Distance to a reference policy, token by token; `rlhf.trainer.algorithms.kl_control` holds it in bounds.

Of KL(policy, reference) on samples of the policy, with `d = log policy - log reference` (Schulman, "Approximating KL
divergence", 2020):

| estimator | value            | of the expectation          | its own gradient, d/d log policy |
|-----------|------------------|-----------------------------|----------------------------------|
| k1        | d                | unbiased, may be negative   | 1: expectation 0, teaches nothing |
| k2        | d² / 2           | biased, never negative      | d: the gradient of KL, on-policy  |
| k3        | exp(-d) - 1 + d  | unbiased, never negative    | 1 - exp(-d): of KL(reference, policy), on-policy |

So in a *reward* (`rlhf.trainer.advantages.kl_penalised`), where only values count, take k1 or k3; in a *loss* take k2,
or k3 with `exact_gradient`. Nothing is clamped: a penalty that is cut off pulls least where the policy is farthest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rlhf.trainer.config import KlEstimator


def k1(log_ratio: Tensor) -> Tensor:
    """Estimate `-x` of KL(p, q) with `x = log q - log p` on samples of p: unbiased, of high variance."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Estimate `x² / 2` of KL(p, q) with `x = log q - log p` on samples of p: biased, and its gradient is KL's."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Per-token estimate `exp(x) - x - 1` of KL(p, q) with `x = log q - log p` on samples of p: unbiased, never
    negative (Schulman, "Approximating KL divergence", 2020)."""
    return torch.expm1(log_ratio) - log_ratio


KL_ESTIMATORS: Mapping[KlEstimator, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_penalty(
    logprobs: Tensor, reference_logprobs: Tensor, estimator: KlEstimator, *, exact_gradient: bool = False
) -> Tensor:
    """Estimate of KL(policy, reference) at every token, in nats, any shape.

    With `exact_gradient` the value is the estimator's and the gradient is k2's, whose expectation on-policy is the
    gradient of KL (arXiv 2506.09477).
    """
    log_ratio = reference_logprobs - logprobs
    value = KL_ESTIMATORS[estimator](log_ratio)
    if not exact_gradient:
        return value
    carrier = k2(log_ratio)
    return value.detach() + carrier - carrier.detach()
