"""Unpack flat tokens into rows: the model computes on packed tokens, the losses on one sequence per row."""

from __future__ import annotations

import torch
from torch import Tensor


class ActionSequences:
    """Sequences of a micro-batch, whose ACTION tokens `[A]` are concatenated. A sequence is one context of the model:
    an episode whose context was rewritten has several."""

    def __init__(self, sequences: Tensor) -> None:
        """`sequences` `int64 [A]` is each token's sequence number, from 0, non-decreasing."""
        sizes = torch.bincount(sequences) if len(sequences) else sequences.new_zeros(1)
        self.count, self.width = len(sizes), int(sizes.max())
        columns = torch.arange(len(sequences), device=sequences.device) - (sizes.cumsum(0) - sizes)[sequences]
        self._places = sequences * self.width + columns
        self.mask = self.spread(torch.ones_like(sequences, dtype=torch.bool))
        """`bool [S, T]`: true where there is a token."""

    def spread(self, flat: Tensor) -> Tensor:
        """`[A]` as `[S, T]`, 0 after the end of a sequence."""
        rows = flat.new_zeros(self.count * self.width).index_put((self._places,), flat)
        return rows.view(self.count, self.width)

    def gather(self, rows: Tensor) -> Tensor:
        """`[S, T]` as `[A]`."""
        return rows.flatten()[self._places]
