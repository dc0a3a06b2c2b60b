"""Entropy of the sampling distribution."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of softmax(logits / temperature), `float32 [...]` of logits `[..., V]`, differentiable.

    The tempered distribution is the one that tokens are sampled from.
    """
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)
