"""The mismatch guard of a rank: checks that engine and learner log-probs of the same weights agree.

Before the first optimizer step of an update, the learner's log-probs of tokens that the current version sampled are
compared with the engine's. All ranks compute the same result, and on a mismatch none of them takes a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed
from torch import Tensor

from rlhf.trainer.rank_answers import Disagreement
from rlhf.weight_sync.tolerance import EXACT, QUANTILE, LogprobTolerance, limits_of

Columns = tuple[Tensor, Tensor, Tensor]
"""Of some tokens `[A]`: the learner's log-probs, the engine's, and whether the current version sampled them."""


class MismatchGuard:
    """Compares engine and learner log-probs. In 16 bits the limits are measured: on the tokens of the first update,
    with the start weights, and again before a step is refused, because rounding grows with the logits."""

    def __init__(self, dtype: str, device: torch.device) -> None:
        self._device = device
        self._limits: LogprobTolerance | None = EXACT if dtype == "float32" else None

    def verdict(self, seen: list[Columns], rounded: Callable[[], list[Tensor]]) -> Disagreement | None:
        """Return the mismatch of the tokens that were `seen`, or None. `rounded` recomputes the learner's log-probs of
        the first of them with another rounding. Collective."""
        gaps = _joined([(own - engine).abs()[current] for own, engine, current in seen], self._device)
        if self._limits is None:
            self._limits = self._measured(seen, rounded())
        refused = self._disagreement(gaps, self._limits)
        if refused is None:
            return None
        self._limits = self._limits.or_looser(self._measured(seen, rounded()))
        return self._disagreement(gaps, self._limits)

    def _disagreement(self, gaps: Tensor, limits: LogprobTolerance) -> Disagreement | None:
        figures = torch.tensor([len(gaps), gaps.sum(), (gaps > limits.high).sum()], dtype=torch.float64)
        tokens, total, above = _summed(figures, self._device).tolist()
        mean, share = total / max(tokens, 1), above / max(tokens, 1)
        if not limits.refuse(mean, share):
            return None
        return Disagreement(tokens=int(tokens), mean=mean, share=share, limits=limits)

    def _measured(self, seen: list[Columns], again: list[Tensor]) -> LogprobTolerance:
        """Return limits from the effect of rounding on these tokens: its mean over all ranks, its largest quantile."""
        pairs = zip(seen, again, strict=False)
        gaps = _joined([(own - other).abs()[current] for (own, _, current), other in pairs], self._device)
        tokens, total = _summed(torch.tensor([len(gaps), gaps.sum()], dtype=torch.float64), self._device).tolist()
        quantile = _quantile(gaps)
        torch.distributed.all_reduce(quantile, op=torch.distributed.ReduceOp.MAX)
        return limits_of(total / max(tokens, 1), float(quantile))


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
