"""What a critic learns by."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.trainer.losses.actions import zeroed


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None = None) -> Tensor:
    """`(v - R)² / 2` of every token, `[B, T]`; 0 where `mask` `bool [B, T]` is false.

    With `clip` the larger of that and of the loss of `v` held within `clip` of `old_values` (PPO's code, arXiv
    1707.06347; see also 2005.12729), so that a critic moves no farther in one update either.
    """
    values, old_values, returns = (zeroed(given, mask) for given in (values, old_values, returns))
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    held = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(plain, (held - returns).square()) / 2


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """`1 - var(R - v) / var(R)` over `mask` `bool`, in float64: 1 is a perfect critic, 0 one that says the mean.

    NaN when all returns are equal: then there is nothing to explain.
    """
    truth, guess = returns[mask].double(), values[mask].double()
    total = truth.var(correction=0)
    return torch.where(total > 0, 1 - (truth - guess).var(correction=0) / total, torch.nan)
