"""The loss of the critic."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.trainer.losses.actions import zeroed


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None = None) -> Tensor:
    """`(v - R)² / 2` of every token, `[B, T]`; 0 where `mask` `bool [B, T]` is false.

    With `clip`, the maximum of that and of the loss of `v` clipped to within `clip` of `old_values` (PPO's code, arXiv
    1707.06347; see also 2005.12729), so that one update cannot move the critic farther than that.
    """
    values, old_values, returns = (zeroed(given, mask) for given in (values, old_values, returns))
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    held = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(plain, (held - returns).square()) / 2
