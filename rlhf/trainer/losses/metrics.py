"""What losses report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a loss saw, in a form that adds up over micro-batches and ranks: `sums` are totals over tokens, each with
    the same number of tokens `count` behind it; `maxima` are largest values. Tensors, so that nothing is awaited."""

    count: int
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)


def largest(values: Tensor) -> Tensor:
    """The largest value, 0 of none."""
    return values.max() if values.numel() else values.new_zeros(())
