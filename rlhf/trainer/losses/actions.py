"""The inputs of a policy loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """Sampled tokens, one sequence per row, all `[B, T]`. Where `mask` is false nothing is read: any value there, NaN
    included, is replaced by 0 and gets no gradient."""

    logprobs: Tensor
    """Log-probs of the policy being trained, in nats; the gradient flows here."""
    old_logprobs: Tensor
    """Log-probs of the policy in the denominator of the ratio (the proximal policy)."""
    advantages: Tensor
    mask: Tensor
    """`bool`: true at ACTION tokens."""
    behaviour_logprobs: Tensor | None = None
    """Log-probs of the policy that sampled, as the engine gave them."""
    reference_logprobs: Tensor | None = None
    """Log-probs of the frozen policy, where the run has one."""
    entropies: Tensor | None = None
    """Entropy of the distribution that each token was sampled from, in nats; the gradient flows here too."""

    def __post_init__(self) -> None:
        for name in ("logprobs", "old_logprobs", "advantages", "behaviour_logprobs", "reference_logprobs", "entropies"):
            column = getattr(self, name)
            if column is not None:
                object.__setattr__(self, name, zeroed(column, self.mask))

    @property
    def log_ratio(self) -> Tensor:
        """log pi(token) / pi_old(token), `[B, T]`."""
        return self.logprobs - self.old_logprobs


def zeroed(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where `mask` is true, 0 elsewhere. Not a product: NaN times 0 is NaN."""
    return torch.where(mask, values, 0.0)


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of each row over `mask`, `[B, 1]`; 0 for a row without any."""
    return zeroed(values, mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
