"""The inputs and the metrics of losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions:
    """ACTION tokens as a loss reads them, every column `[A]`: those of one sequence after another, without padding.

    The gradient flows through `logprobs` and, where the recipe's loss reads them, `entropies`. A sequence is one
    context of the model: an episode whose context was rewritten has several."""

    logprobs: Tensor
    """Log-probs of the policy being trained, in nats."""
    proximal_logprobs: Tensor
    """Log-probs of the policy in the denominator of the ratio (the proximal policy)."""
    behaviour_logprobs: Tensor
    """Log-probs of the policy that sampled, as the engine gave them."""
    advantages: Tensor
    entropies: Tensor
    """Entropy of the distribution that each token was sampled from, in nats."""
    loss_weights: Tensor
    """A token's weight in the loss before the division by the denominator of the step."""
    sequences: Tensor
    """`int64`: the number of each token's sequence, from 0, non-decreasing, without gaps."""
    reference_logprobs: Tensor | None = None
    """Log-probs of the frozen policy, where the run has one."""

    @property
    def log_ratio(self) -> Tensor:
        """log pi(token) / pi_old(token), `[A]`."""
        return self.logprobs - self.proximal_logprobs


@dataclass(frozen=True, slots=True)
class LossMetrics:
    """Metrics of a loss, in a form that sums over micro-batches and ranks: `sums` are totals over the same number of
    tokens, `count`; `maxima` are largest values. Tensors, so that nothing waits for the GPU."""

    count: int
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)


def largest(values: Tensor) -> Tensor:
    """Return the largest value; 0 for an empty tensor."""
    return values.max() if values.numel() else values.new_zeros(())


def over_sequences(values: Tensor, sequences: Tensor, reduction: Literal["sum", "mean"]) -> Tensor:
    """Return the sum or the mean of `values` `[A]` over the tokens of each sequence, on each of these tokens: `[A]`,
    without gradient. Added in float64 and in a fixed order, on GPUs too."""
    if not len(values):
        return values.detach()
    sizes = torch.bincount(sequences)
    reduced = torch.segment_reduce(values.detach().double(), reduction, lengths=sizes)
    return reduced[sequences].to(values.dtype)
