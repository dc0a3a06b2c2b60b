"""Tokens of a policy other than the one that learns: weights, rejection, and how far apart the two are.

Three policies: *behaviour* sampled (the engine, in its precision, at its version), *proximal* is the learner's before
the update, *current* is being trained. Here the weight is proximal over behaviour, a constant to the gradient.

Each method composes `ratio` with a bound:

    TIS      truncated(ratio(…, level), high=2)                       weights above the bound are cut to it
    IcePop   masked_ratios(ratio(…, "token"), low=0.5, high=2)        tokens outside are dropped (arXiv 2510.18855)
    MIS      the same at "sequence" or "geometric" level              whole sequences are dropped
    mixed    ratio(…, "token") * within_bounds(ratio(…, "geometric"), low=0.9, high=1.1)
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rlhf.trainer.credit.kl import kl_estimate
from rlhf.trainer.losses.actions import LossMetrics, over_sequences

RatioLevel = Literal["token", "sequence", "geometric"]
"""`token`: each token's ratio. `sequence`: the product over the sequence, unbiased, with a variance that grows with its
length. `geometric`: the geometric mean over the sequence, comparable between lengths."""


def ratio(proximal_logprobs: Tensor, behaviour_logprobs: Tensor, sequences: Tensor, level: RatioLevel) -> Tensor:
    """Proximal over behaviour probability at `level`, without gradient, `[A]`; `sequences` are those of `Actions`."""
    log_ratio = proximal_logprobs.detach() - behaviour_logprobs
    if level != "token":
        log_ratio = over_sequences(log_ratio, sequences, "sum" if level == "sequence" else "mean")
    return torch.exp(log_ratio)


def truncated(ratios: Tensor, *, low: float = 0.0, high: float = math.inf) -> Tensor:
    """Weights clipped to `[low, high]`. A lower bound improves no estimate and is 0 by default."""
    return ratios.clamp(low, high)


def within_bounds(ratios: Tensor, *, low: float = 0.0, high: float = math.inf) -> Tensor:
    """`bool`: whether ratios are in `[low, high]`. As a factor it rejects tokens; the denominator of the loss is
    unchanged."""
    return (ratios >= low) & (ratios <= high)


def masked_ratios(ratios: Tensor, *, low: float = 0.0, high: float = math.inf) -> Tensor:
    """Ratios in `[low, high]` unchanged, 0 elsewhere (also for an infinite one)."""
    return torch.where(within_bounds(ratios, low=low, high=high), ratios, 0.0)


def corrected(per_token: Tensor, importance: Tensor) -> Tensor:
    """Losses of tokens times their bounded weights, proximal over behaviour policy. With PPO it is decoupled PPO (arXiv
    2110.00641, 2505.24298): the ratio is to the proximal policy. A rejected token has weight 0 and still counts in the
    denominator, so rejecting tokens never increases the weight of others."""
    # A product with a weight of 0 would keep what is infinite: a dropped token is dropped.
    return torch.where(importance > 0, per_token * importance, 0.0)


def mismatch(proximal_logprobs: Tensor, behaviour_logprobs: Tensor, high: float) -> LossMetrics:
    """Difference between learner and engine on the engine's samples: k1 and k3 estimates of KL(behaviour,
    proximal), the number of tokens whose ratio is above `high`, and the sums of weights and of their squares, from
    which the effective sample size of any number of parts follows."""
    log_ratio = proximal_logprobs.detach() - behaviour_logprobs
    weights = torch.exp(log_ratio)
    bounded = weights.clamp(max=high)
    sums = {
        "mismatch/k1": kl_estimate(-log_ratio, "k1").sum(),
        "mismatch/k3": kl_estimate(-log_ratio, "k3").sum(),
        "mismatch/weight_mean": bounded.sum(),
        "mismatch/weight_squared": bounded.square().sum(),
        "mismatch/truncated_fraction": (weights > high).float().sum(),
    }
    return LossMetrics(log_ratio.numel(), sums)
