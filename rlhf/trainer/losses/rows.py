"""Flat tokens as rows: what is packed for the model is spread out for the losses, one sequence a row."""

from __future__ import annotations

import torch
from torch import Tensor


class ActionSequences:
    """Sequences of a micro-batch, whose ACTION tokens `[A]` lie one after another. A sequence is what the model saw as
    one context: an episode whose context was rewritten on the way is several."""

    def __init__(self, sequences: Tensor) -> None:
        """`sequences` `int64 [A]` numbers each token's sequence, from 0, never falling."""
        sizes = torch.bincount(sequences) if len(sequences) else sequences.new_zeros(1)
        self.count, self.width = len(sizes), int(sizes.max())
        columns = torch.arange(len(sequences), device=sequences.device) - (sizes.cumsum(0) - sizes)[sequences]
        self._places = sequences * self.width + columns
        self.mask = self.spread(torch.ones_like(sequences, dtype=torch.bool))
        """`bool [S, T]`: true where there is a token."""

    def spread(self, flat: Tensor) -> Tensor:
        """`[A]` as `[S, T]`, 0 behind the end of a sequence."""
        rows = flat.new_zeros(self.count * self.width).index_put((self._places,), flat)
        return rows.view(self.count, self.width)

    def gather(self, rows: Tensor) -> Tensor:
        """`[S, T]` as `[A]`."""
        return rows.flatten()[self._places]
