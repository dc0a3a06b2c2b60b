"""Groups the tokens of packed rows into attention blocks: sequences of similar length, with their shared prefixes.

Every other part of a transformer works on one token at a time, so sequences of any length are packed one after the
other. Only attention must know where they begin; `rlhf.models.attention` gathers each block's tokens and puts the
results back.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

SMALL_KEYS = 256
"""With at most this many keys, a block's scores are small enough to be stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Tokens at flat positions `start` to `start + length`; they follow the first `shared` tokens of the sequence at
    `root`."""

    start: int
    length: int
    root: int
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Runs that are attended together. `queries` `int64 [S, Q]` are flat positions of their tokens, and `keys` `int64
    [S, K]` those of the tokens that they see; both are padded with position 0 of the run. `mask` `[S or 1, 1, Q, K]` is
    added to the scores; without one, `queries` are `keys` and attention is causal. `query_places` `[S or 1, Q]` and
    `key_places` `[S or 1, K]` are positions within their sequence."""

    queries: Tensor
    keys: Tensor
    mask: Tensor | None
    query_places: Tensor
    key_places: Tensor

    def within(self, window: int, dtype: torch.dtype) -> Block:
        """The same block with a sliding window: a query sees `window` tokens of its sequence, the last of which is its
        own."""
        back = self.query_places[:, :, None] - self.key_places[:, None]
        mask = torch.zeros(back.shape, dtype=dtype, device=back.device)
        mask = mask.masked_fill((back < 0) | (back >= window), -torch.inf)[:, None]
        return replace(self, mask=mask if self.mask is None else torch.minimum(self.mask, mask))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """The blocks of a forward pass. `order` `int64 [N]` maps each token to its index in the concatenated queries of all
    blocks. `longest` is the largest number of tokens that one token sees without a window."""

    blocks: tuple[Block, ...]
    order: Tensor
    longest: int
    _windowed: dict[int, tuple[Block, ...]] = field(default_factory=dict)

    def within(self, window: int | None, dtype: torch.dtype) -> tuple[Block, ...]:
        """The blocks for a layer with this `window`, computed once per forward pass for all layers."""
        if window is None or self.longest <= window:
            return self.blocks
        if window not in self._windowed:
            self._windowed[window] = tuple(block.within(window, dtype) for block in self.blocks)
        return self._windowed[window]


def runs_of(position_ids: Tensor) -> list[TokenSpan]:
    """The runs of `position_ids` `[R, L]`: stretches of consecutive positions. A run that starts at 0 begins a
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


def blocks_of(position_ids: Tensor, dtype: torch.dtype) -> Blocks:
    """The blocks for `position_ids` `[R, L]` in `dtype`: runs of similar length, with shared prefixes of similar
    length, are in one block."""
    alike: dict[tuple[int, int], list[TokenSpan]] = defaultdict(list)
    for run in runs_of(position_ids):
        alike[_rounded(run.length), _rounded(run.shared)].append(run)
    made = [_block(runs, dtype, position_ids.device) for runs in alike.values()]
    order = torch.empty(position_ids.numel(), dtype=torch.long, device=position_ids.device)
    offset = 0
    for runs, block in zip(alike.values(), made, strict=True):
        real = _real(runs, block.queries)
        where = torch.arange(block.queries.numel(), device=order.device).view(block.queries.shape)
        order[block.queries[real]] = offset + where[real]
        offset += block.queries.numel()
    longest = max(run.shared + run.length for runs in alike.values() for run in runs)
    return Blocks(blocks=tuple(made), order=order, longest=longest)


def _block(runs: list[TokenSpan], dtype: torch.dtype, device: torch.device) -> Block:
    starts, lengths, roots, shares = torch.tensor(
        [(run.start, run.length, run.root, run.shared) for run in runs], device=device
    ).T[:, :, None]
    own, shared = torch.arange(int(lengths.max()), device=device), torch.arange(int(shares.max()), device=device)
    queries = starts + torch.where(own < lengths, own, 0)
    if len(shared) == 0 and len(own) > SMALL_KEYS:
        return Block(queries=queries, keys=queries, mask=None, query_places=own[None], key_places=own[None])
    keys = torch.cat([roots + torch.where(shared < shares, shared, 0), queries], 1)
    causal = (own[:, None] >= own)[None].expand(len(runs), -1, -1)
    seen = torch.cat([(shared < shares)[:, None].expand(-1, len(own), -1), causal], 2)
    seen = seen[:1] if bool((shares == shares[0]).all()) else seen
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, -torch.inf)
    places = shares + own
    seen_places = torch.cat([shared.expand(len(runs), -1), places], 1)
    return Block(queries=queries, keys=keys, mask=mask[:, None], query_places=places, key_places=seen_places)


def _real(runs: list[TokenSpan], queries: Tensor) -> Tensor:
    lengths = torch.tensor([run.length for run in runs], device=queries.device)
    return torch.arange(queries.shape[1], device=queries.device) < lengths[:, None]


def _rounded(length: int) -> int:
    """`length` rounded up to a number with at most two leading bits: 1, 2, 3, 4, 6, 8, 12, 16, 24 …"""
    power = 1 << max(length - 1, 0).bit_length()
    return length if length < 2 else (power * 3 // 4 if length <= power * 3 // 4 else power)
