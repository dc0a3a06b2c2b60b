"""The loss of a step, from rows of token losses, by the functions that training calls."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlhf.trainer.aggregation import Aggregation, denominator, token_weights
from rlhf.trainer.losses import aggregate


def divisor(mask: Tensor, aggregation: Aggregation, constant_tokens: float = 1.0) -> float:
    """A row of `mask` `bool [B, T]` without any token is no sample."""
    return denominator(_lengths(mask), aggregation, constant_tokens)


def summed(
    per_token: Tensor, mask: Tensor, aggregation: Aggregation, whole: float | None = None, constant_tokens: float = 1.0
) -> Tensor:
    """The loss of `per_token` `[B, T]`; `whole` is the divisor of the step where this is only a piece of it."""
    lengths = _lengths(mask)
    weights = np.repeat(token_weights(lengths, aggregation), lengths)
    by = denominator(lengths, aggregation, constant_tokens) if whole is None else whole
    return aggregate(per_token[mask], torch.as_tensor(weights).to(per_token.dtype), by)


def _lengths(mask: Tensor) -> np.ndarray:
    lengths: np.ndarray = mask.sum(-1).numpy()
    return lengths[lengths > 0]
