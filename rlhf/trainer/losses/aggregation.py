"""From losses of tokens to the loss of an optimizer step.

Every aggregation is a weighted sum over tokens, divided by one denominator. The weights of a sequence depend on that
sequence alone and denominators add up, so a batch may be cut into micro-batches anywhere between sequences: divide
each piece by the denominator of the whole, and the pieces add up to the whole.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
"""`token_mean`: mean over all tokens (DAPO, arXiv 2503.14476). `sequence_mean`: mean over sequences of their token
means (GRPO, arXiv 2402.03300). `sequence_sum`: mean over sequences of their token sums. `constant`: `sequence_sum`
divided by a constant number of tokens (Dr.GRPO, arXiv 2503.20783)."""


def token_weights(mask: Tensor, aggregation: Aggregation) -> Tensor:
    """The weight of every token, `float32 [B, T]`; 0 where `mask` `bool [B, T]` is false."""
    weights = mask.float()
    if aggregation == "sequence_mean":
        return weights / weights.sum(-1, keepdim=True).clamp(min=1)
    return weights


def denominator(mask: Tensor, aggregation: Aggregation, constant_tokens: float = 1.0) -> float:
    """What the weighted sum is divided by: tokens, or sequences, or sequences times `constant_tokens`.

    A sequence without any token in `mask` `bool [B, T]` is no sample and is not counted; of nothing at all it is 1.
    """
    if aggregation == "token_mean":
        return max(float(mask.sum()), 1.0)
    sequences = max(float(mask.any(-1).sum()), 1.0)
    return sequences * constant_tokens if aggregation == "constant" else sequences


def aggregate(
    per_token: Tensor, mask: Tensor, aggregation: Aggregation, whole: float | None = None, constant_tokens: float = 1.0
) -> Tensor:
    """The loss of `per_token` `[B, T]` over `mask` `bool [B, T]`, a scalar.

    `whole` is the `denominator` of all that one optimizer step sees, where this is only a piece of it.
    """
    divisor = denominator(mask, aggregation, constant_tokens) if whole is None else whole
    return (torch.where(mask, per_token, 0.0) * token_weights(mask, aggregation)).sum() / divisor
