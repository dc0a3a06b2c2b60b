"""Groups the tokens of packed rows into attention blocks: sequences of similar length, with their shared prefixes.
`rlhf.models.attention` gathers each block's tokens and puts the results back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from rlhf.models.long_attention import LongRuns, TokenSpan, long_runs, runs_of
from rlhf.models.masked_attention import SMALL_KEYS

LONG_KEYS = 1024
"""A run that sees more tokens than this is attended without a mask."""


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
        """Return the same block with a sliding window: a query sees itself and the `window - 1` tokens before."""
        back = self.query_places[:, :, None] - self.key_places[:, None]
        mask = torch.zeros(back.shape, dtype=dtype, device=back.device)
        mask = mask.masked_fill((back < 0) | (back >= window), -torch.inf)[:, None]
        return replace(self, mask=mask if self.mask is None else torch.minimum(self.mask, mask))


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """How the tokens of a forward pass are attended. What depends on them is computed once for all layers."""

    runs: tuple[TokenSpan, ...]
    dtype: torch.dtype
    device: torch.device
    _windowed: dict[int, tuple[Block, ...]] = field(default_factory=dict)

    @cached_property
    def longest(self) -> int:
        """The largest number of tokens that one token sees without a window."""
        return max(run.shared + run.length for run in self.runs)

    @cached_property
    def every(self) -> LongRuns:
        """All runs, for a kernel that takes sequences of any length; its outputs are in the tokens' order."""
        return long_runs(self.runs, self.device)

    @cached_property
    def long(self) -> LongRuns | None:
        long = [run for run in self.runs if _is_long(run)]
        return long_runs(long, self.device) if long else None

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Runs of similar length, with shared prefixes of similar length, are in one block."""
        return tuple(_block(runs, self.dtype, self.device) for runs in self._alike)

    @cached_property
    def order(self) -> Tensor:
        """`int64 [N]`: the index of each token in the concatenated queries of all blocks and of `long`."""
        order = torch.empty(sum(run.length for run in self.runs), dtype=torch.long, device=self.device)
        offset = 0
        for runs, block in zip(self._alike, self.blocks, strict=True):
            lengths = torch.tensor([run.length for run in runs], device=self.device)
            real = torch.arange(block.queries.shape[1], device=self.device) < lengths[:, None]
            where = torch.arange(block.queries.numel(), device=order.device).view(block.queries.shape)
            order[block.queries[real]] = offset + where[real]
            offset += block.queries.numel()
        if self.long:
            order[self.long.own.queries] = offset + torch.arange(len(self.long.own.queries), device=order.device)
        return order

    @cached_property
    def _alike(self) -> list[list[TokenSpan]]:
        alike: dict[tuple[int, int], list[TokenSpan]] = defaultdict(list)
        for run in self.runs:
            if not _is_long(run):
                alike[_rounded(run.length), _rounded(run.shared)].append(run)
        return list(alike.values())

    def within(self, window: int | None) -> tuple[Block, ...]:
        if window is None or self.longest <= window:
            return self.blocks
        if window not in self._windowed:
            self._windowed[window] = tuple(block.within(window, self.dtype) for block in self.blocks)
        return self._windowed[window]


def blocks_of(position_ids: Tensor, dtype: torch.dtype) -> Blocks:
    return Blocks(runs=tuple(runs_of(position_ids)), dtype=dtype, device=position_ids.device)


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


def _is_long(run: TokenSpan) -> bool:
    return run.shared + run.length > LONG_KEYS


def _rounded(length: int) -> int:
    """`length` rounded up to a number with at most two leading bits: 1, 2, 3, 4, 6, 8, 12, 16, 24 …"""
    power = 1 << max(length - 1, 0).bit_length()
    return length if length < 2 else (power * 3 // 4 if length <= power * 3 // 4 else power)
