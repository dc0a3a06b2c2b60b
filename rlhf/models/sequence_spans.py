"""Finds the beginnings of the sequences of packed rows, and those that share a prefix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Tokens at flat positions `start` to `start + length`; they follow the first `shared` tokens of the sequence at
    `root`."""

    start: int
    length: int
    root: int
    shared: int


def runs_of(position_ids: Tensor) -> list[TokenSpan]:
    """Return the runs of `position_ids` `[R, L]`: stretches of consecutive positions. A run that starts at 0 begins a
    sequence. A run that starts at p > 0 is another branch of the same sequence, and sees that sequence's first p tokens
    and itself."""
    breaks = torch.ones_like(position_ids, dtype=torch.bool)
    breaks[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    starts = breaks.flatten().nonzero()[:, 0]
    lengths = torch.diff(starts, append=starts.new_tensor([position_ids.numel()]))
    runs: list[TokenSpan] = []
    root = 0
    shares = position_ids.flatten()[starts]
    for start, length, shared in zip(starts.tolist(), lengths.tolist(), shares.tolist(), strict=True):
        root = start if shared == 0 else root
        runs.append(TokenSpan(start=start, length=length, root=root, shared=shared))
    return runs
