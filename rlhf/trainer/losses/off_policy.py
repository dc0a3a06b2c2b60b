"""Tokens of another policy than the one that learns: weights, rejection, and how far apart the two are.

Three policies: *behaviour* sampled (the engine, in its precision, at its version), *proximal* is the learner's before
the update, *current* is being trained. Here the weight is proximal over behaviour, a constant to the gradient.

Methods are sentences of three words, *ratio*, *truncated*, *kept*:

    TIS      truncated(ratio(…, level), high=2)                       weights above the bound are cut to it
    IcePop   r * kept(r, low=0.5, high=2)  with  r = ratio(…, "token")  tokens outside are dropped (arXiv 2510.18855)
    MIS      the same at "sequence" or "geometric" level: whole sequences are dropped
    mixed    ratio(…, "token") * kept(ratio(…, "geometric"), 0.9, 1.1)  sequences dropped, tokens weighted
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rlhf.trainer.losses.actions import row_mean, zeroed
from rlhf.trainer.losses.kl import k1, k3
from rlhf.trainer.losses.metrics import Metrics

Level = Literal["token", "sequence", "geometric"]
"""`token`: each token's ratio. `sequence`: the product over the row, unbiased, with a variance that grows with its
length. `geometric`: the geometric mean over the row, comparable between lengths."""


def ratio(proximal_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Proximal over behaviour probability at `level`, without gradient, `[B, T]`; 0 where `mask` `bool` is false."""
    log_ratio = zeroed(proximal_logprobs.detach() - behaviour_logprobs, mask)
    if level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True)
    elif level == "geometric":
        log_ratio = row_mean(log_ratio, mask)
    return zeroed(torch.exp(log_ratio).expand(mask.shape), mask)


def truncated(ratios: Tensor, *, low: float = 0.0, high: float = math.inf) -> Tensor:
    """Weights clipped to `[low, high]`. A lower bound improves no estimate and is 0 by default."""
    return ratios.clamp(low, high)


def within_bounds(ratios: Tensor, *, low: float = 0.0, high: float = math.inf) -> Tensor:
    """`bool`: whether ratios are in `[low, high]`. As a factor it rejects tokens; the denominator of the loss is
    unchanged."""
    return (ratios >= low) & (ratios <= high)


def masked_ratios(ratios: Tensor, *, low: float = 0.0, high: float = math.inf) -> Tensor:
    """Ratios in `[low, high]` unchanged, 0 elsewhere (also for an infinite one)."""
    return zeroed(ratios, within_bounds(ratios, low=low, high=high))


def corrected(per_token: Tensor, importance: Tensor) -> Tensor:
    """Losses of tokens times their bounded weights, proximal over behaviour policy. With PPO it is decoupled PPO (arXiv
    2110.00641, 2505.24298): the ratio is to the proximal policy. A rejected token has weight 0 and still counts in the
    denominator, so rejecting tokens never increases the weight of others."""
    # A product with a weight of 0 would keep what is infinite: a dropped token is dropped.
    return torch.where(importance > 0, per_token * importance, 0.0)


def mismatch(proximal_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, high: float) -> Metrics:
    """Difference between learner and engine on the engine's samples, `[B, T]`: k1 and k3 estimates of KL(behaviour,
    proximal), the number of tokens whose ratio is above `high`, and the sums of weights and of their squares, from
    which the effective sample size of any number of parts follows."""
    log_ratio = (proximal_logprobs.detach() - behaviour_logprobs)[mask]
    weights = torch.exp(log_ratio)
    bounded = weights.clamp(max=high)
    sums = {
        "mismatch/k1": k1(log_ratio).sum(),
        "mismatch/k3": k3(log_ratio).sum(),
        "mismatch/weight_mean": bounded.sum(),
        "mismatch/weight_squared": bounded.square().sum(),
        "mismatch/truncated_fraction": (weights > high).float().sum(),
    }
    return Metrics(log_ratio.numel(), sums)
