"""Packed rows, taken apart into rows of one sequence, and put together again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf.models.long_attention import runs_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceRows:
    """`sources` `int64 [S, T]` are the flat positions in packed rows `[R, L]` of every sequence's tokens: a branch
    begins with the tokens that it shares, and a shorter sequence ends with padding, which no causal model shows to
    earlier tokens. `places` `int64 [R * L]` are the flat positions in `[S, T]` where packed rows find their results."""

    sources: Tensor
    places: Tensor

    def apart(self, packed: Tensor) -> Tensor:
        """Return `[S, T, …]` of packed `[R, L, …]`."""
        return packed.flatten(0, 1)[self.sources]

    def together(self, apart: Tensor, like: Tensor) -> Tensor:
        """Return packed `[R, L, …]`, with the rows of `like`, of `[S, T, …]`."""
        return apart.flatten(0, 1)[self.places].view(*like.shape[:2], *apart.shape[2:])


def sequence_rows(position_ids: Tensor) -> SequenceRows:
    """Return the sequences of packed rows with these `position_ids` `[R, L]`, without those of one token."""
    spans = runs_of(position_ids)
    runs = [span for span in spans if span.length > 1 or span.shared] or spans[:1]
    longest = max(run.shared + run.length for run in runs)
    sources = torch.zeros(len(runs), longest, dtype=torch.long)
    places = torch.zeros(position_ids.numel(), dtype=torch.long)
    for row, run in enumerate(runs):
        whole = run.shared + run.length
        sources[row, : run.shared] = torch.arange(run.root, run.root + run.shared)
        sources[row, run.shared : whole] = torch.arange(run.start, run.start + run.length)
        places[run.start : run.start + run.length] = row * longest + torch.arange(run.shared, whole)
    return SequenceRows(sources=sources.to(position_ids.device), places=places.to(position_ids.device))
