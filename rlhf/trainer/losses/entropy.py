"""Entropy of the distribution sampled from."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of softmax(logits / temperature), `float32 [...]` of logits `[..., V]`, differentiable.

    Of the tempered distribution, because that is the one the tokens are drawn from.
    """
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)
