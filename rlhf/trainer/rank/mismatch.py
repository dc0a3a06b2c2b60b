"""The mismatch guard of a rank: checks that engine and learner log-probs of the same weights agree.

Before the first optimizer step of an update, the learner's log-probs of tokens that the current version sampled are
compared with the engine's. All ranks compute the same result, and on a mismatch none of them takes a step.
"""

from __future__ import annotations

import math

import torch
import torch.distributed
from torch import Tensor

from rlhf.trainer.rank_answers import Disagreement
from rlhf.weight_sync.tolerance import EXACT, QUANTILE, limits_of

Columns = tuple[Tensor, Tensor, Tensor]
"""Of some tokens `[A]`: the learner's log-probs, the engine's, and whether the current version sampled them."""


class MismatchGuard:
    """Compares engine and learner log-probs. The limits are loosened to what rounding explains before a step is
    refused, and again later, because rounding grows with the logits."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._limits = device, EXACT

    def disagreement(self, seen: list[Columns]) -> Disagreement | None:
        """Return the mismatch of these tokens, or None within the limits. Collective."""
        limits = self._limits
        gaps = _joined([(own - engine).abs()[current] for own, engine, current in seen], self._device)
        figures = torch.tensor([len(gaps), gaps.sum(), (gaps > limits.high).sum()], dtype=torch.float64)
        tokens, total, above = _summed(figures, self._device).tolist()
        mean, share = total / max(tokens, 1), above / max(tokens, 1)
        if not limits.refuse(mean, int(above), int(tokens)):
            return None
        return Disagreement(tokens=int(tokens), mean=mean, share=share, limits=limits)

    def loosen(self, seen: list[Columns], rounded: list[Tensor]) -> None:
        """Allow the effect of rounding on these tokens: its mean over all ranks, its largest quantile. `rounded` are
        the learner's log-probs of the first of them, computed with another rounding. Collective."""
        pairs = zip(seen, rounded, strict=False)
        gaps = _joined([(own - other).abs()[current] for (own, _, current), other in pairs], self._device)
        tokens, total = _summed(torch.tensor([len(gaps), gaps.sum()], dtype=torch.float64), self._device).tolist()
        quantile = _quantile(gaps)
        torch.distributed.all_reduce(quantile, op=torch.distributed.ReduceOp.MAX)
        self._limits = self._limits.or_looser(limits_of(total / max(tokens, 1), float(quantile)))


def _joined(parts: list[Tensor], device: torch.device) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.float64, device=device), *(part.double() for part in parts)])


def _quantile(values: Tensor) -> Tensor:
    """Return the `QUANTILE`, 0 without values; `torch.quantile` takes no more than 2^24 of them."""
    if not len(values):
        return values.new_zeros(())
    return values.kthvalue(math.ceil(QUANTILE * len(values))).values


def _summed(figures: Tensor, device: torch.device) -> Tensor:
    figures = figures.to(device)
    torch.distributed.all_reduce(figures)
    return figures
