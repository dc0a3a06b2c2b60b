"""Metrics of losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of a loss, in a form that sums over micro-batches and ranks: `sums` are totals over the same number of
    tokens, `count`; `maxima` are largest values. Tensors, so that nothing waits for the GPU."""

    count: int
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)


def largest(values: Tensor) -> Tensor:
    """The largest value; 0 for an empty tensor."""
    return values.max() if values.numel() else values.new_zeros(())
