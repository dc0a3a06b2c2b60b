"""Attention of long sequences, some with shared prefixes: memory grows with the tokens and not with their square. A
branch sees its prefix, all of it, and itself, causally: two parts without a mask, merged by the log-sum-exp of their
scores (as in ring attention, arXiv 2310.01889). What kernels without a mask do not compute (windows with branches,
capped scores, sinks) is computed for some queries at a time, and again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf.models.masked_attention import AttentionScaling, masked_attention
from rlhf.models.varlen import Stretches, flash_takes, runs_without_masks, stretches, varlen_backward, varlen_forward

TILE_SCORES = 2**24
"""Largest number of scores of all heads that are computed at once with a mask (64 MiB in float32)."""
TILE_QUERIES = (16, 512)
"""Smallest and largest number of queries that are computed at once with a mask."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LongRuns:
    """Runs, attended one after the other in this order. `own` are the tokens of each, as queries and keys; `shared` the
    queries of branches and the prefixes that they see, or None without branches; `branches` `int64` are the places of
    these queries among `own`. `longest` is the largest number of tokens that one token sees without a window."""

    runs: tuple[TokenSpan, ...]
    own: Stretches
    shared: Stretches | None
    branches: Tensor
    longest: int


def long_runs(runs: Sequence[TokenSpan], device: torch.device) -> LongRuns:
    """Adjacent branches of one prefix read its keys once."""
    own = [[(run.start, run.length)] for run in runs]
    queries, keys, branches = [], [], torch.zeros(sum(run.length for run in runs), dtype=torch.bool)
    place = 0
    for (root, shared), group in groupby(runs, lambda run: (run.root, run.shared)):
        parts = [(run.start, run.length) for run in group]
        tokens = sum(length for _, length in parts)
        if shared:
            queries.append(parts)
            keys.append([(root, shared)])
            branches[place : place + tokens] = True
        place += tokens
    return LongRuns(
        runs=tuple(runs),
        own=stretches(own, own, device, causal=True),
        shared=stretches(queries, keys, device, causal=False) if keys else None,
        branches=branches.nonzero()[:, 0].to(device),
        longest=max(run.shared + run.length for run in runs),
    )


def needs_masks(query: Tensor, value: Tensor, runs: LongRuns, scores: AttentionScaling, window: int | None) -> bool:
    """Whether attention of these heads cannot be computed without masks."""
    narrow = window is not None and window < runs.longest
    windowed = narrow and (runs.shared is not None or not flash_takes(query))
    return windowed or not scores.plain or not runs_without_masks(query, value)


def long_attention(
    query: Tensor, key: Tensor, value: Tensor, runs: LongRuns, scores: AttentionScaling, window: int | None
) -> Tensor:
    """Return the outputs `[T, heads, d]` of the tokens of `runs`, in their order, for flat `query`, `key` and `value`
    `[N, heads or fewer, d]`."""
    if needs_masks(query, value, runs, scores, window):
        sinks = query.new_zeros(0) if scores.sinks is None else scores.sinks
        tiles = tuple(_tiles(runs.runs, query.shape[1], window))
        masked: Tensor = _InTiles.apply(query, key, value, sinks, scores, tiles, window)  # type: ignore[no-untyped-call]
        return masked
    narrow = window if window is not None and window < runs.longest else None
    merged: Tensor = _Merged.apply(query, key, value, runs, scores.scaling, narrow)  # type: ignore[no-untyped-call]
    return merged


class _Merged(torch.autograd.Function):
    """Attention to a run's own tokens and to its prefix, merged. The gradients of a part follow from the output and the
    log-sum-exp of the whole: the probability of a key is exp(score - log-sum-exp), whatever the other keys."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, runs: LongRuns, scale: float, window: int | None
    ) -> Tensor:
        own, shared, branches = runs.own, runs.shared, runs.branches
        out, total = varlen_forward(query[own.queries], key[own.keys], value[own.keys], own, scale, window)
        total = total.contiguous()
        if shared is not None:
            of_prefix, sums = varlen_forward(query[shared.queries], key[shared.keys], value[shared.keys], shared, scale)
            whole = torch.logaddexp(total[branches], sums)
            mine, theirs = (torch.exp(part - whole)[..., None] for part in (total[branches], sums))
            out[branches] = (out[branches] * mine + of_prefix * theirs).to(out.dtype)
            total[branches] = whole
        ctx.save_for_backward(query, key, value, out, total)
        ctx.runs, ctx.scale, ctx.window = runs, scale, window
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, total = ctx.saved_tensors
        runs, gradient = ctx.runs, gradient.contiguous()
        sums = [_sum_like(x) for x in (query, key, value)]
        for cut, places in ((runs.own, None), (runs.shared, runs.branches)):
            if cut is None:
                continue
            given = (gradient, out, total) if places is None else (x[places] for x in (gradient, out, total))
            of_out, outputs, scores = given
            parts = varlen_backward(
                of_out, query[cut.queries], key[cut.keys], value[cut.keys], outputs, scores, cut, ctx.scale,
                ctx.window if cut.causal else None,
            )  # fmt: skip
            for whole, part, where in zip(sums, parts, (cut.queries, cut.keys, cut.keys), strict=True):
                whole.index_add_(0, where, part.to(whole.dtype))
        of_query, of_key, of_value = (a.to(x.dtype) for a, x in zip(sums, (query, key, value), strict=True))
        return of_query, of_key, of_value, None, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Queries `first` to `last` of a run, and the first position of its sequence that one of them sees."""

    run: TokenSpan
    first: int
    last: int
    low: int

    @property
    def queries(self) -> slice:
        return slice(self.run.start + self.first, self.run.start + self.last)

    @property
    def keys(self) -> tuple[slice, slice]:
        """Those of the prefix, and the run's own."""
        run, shared = self.run, min(self.low, self.run.shared)
        own = self.low - shared
        return slice(run.root + shared, run.root + run.shared), slice(run.start + own, run.start + self.last)

    def mask(self, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the additive mask `[1, 1, Q, K]`, by places in the sequence."""
        places = torch.arange(self.low, self.run.shared + self.last, device=device)
        back = torch.arange(self.run.shared + self.first, self.run.shared + self.last, device=device)[:, None] - places
        hidden = back < 0 if window is None else (back < 0) | (back >= window)
        return torch.zeros(back.shape, dtype=dtype, device=device).masked_fill(hidden, -torch.inf)[None, None]


class _InTiles(torch.autograd.Function):
    """Attention with masks, some queries at a time; nothing is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, scores: AttentionScaling,
        tiles: Sequence[Tile], window: int | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(query, key, value, sinks)
        ctx.scores, ctx.tiles, ctx.window = replace(scores, sinks=None), tiles, window
        return torch.cat([_attend(_seen(tile, query, key, value), sinks, tile, scores, window) for tile in tiles])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *saved, sinks = ctx.saved_tensors
        sums, given = [_sum_like(x) for x in (*saved, sinks)], 0
        for tile in ctx.tiles:
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (*_seen(tile, *saved), sinks)]
                out = _attend(leaves[:3], leaves[3], tile, ctx.scores, ctx.window)
            wanted = leaves if len(sinks) else leaves[:3]
            of_query, of_key, of_value, *of_sinks = torch.autograd.grad(out, wanted, gradient[given : given + len(out)])
            given += len(out)
            sums[0][tile.queries] += of_query
            for whole, part in ((sums[1], of_key), (sums[2], of_value)):
                prefix, own = tile.keys
                before = prefix.stop - prefix.start
                whole[prefix] += part[:before]
                whole[own] += part[before:]
            for part in of_sinks:
                sums[3] += part
        gradients = (total.to(x.dtype) for total, x in zip(sums, (*saved, sinks), strict=True))
        return (*gradients, None, None, None)


def _attend(seen: Sequence[Tensor], sinks: Tensor, tile: Tile, scores: AttentionScaling, window: int | None) -> Tensor:
    query, key, value = (x.transpose(0, 1)[None] for x in seen)
    scores = replace(scores, sinks=sinks if len(sinks) else None)
    mask = tile.mask(window, query.dtype, query.device)
    return masked_attention(query, key, value, mask, scores)[0].transpose(0, 1)


def _seen(tile: Tile, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    return [query[tile.queries], *(torch.cat([x[part] for part in tile.keys]) for x in (key, value))]


def _tiles(runs: Sequence[TokenSpan], heads: int, window: int | None) -> Iterator[Tile]:
    for run in runs:
        longest = run.shared + run.length
        keys = longest if window is None else min(longest, window + TILE_QUERIES[1])
        size = min(max(TILE_SCORES // (heads * keys), TILE_QUERIES[0]), TILE_QUERIES[1])
        for first in range(0, run.length, size):
            low = 0 if window is None else max(0, run.shared + first - window + 1)
            yield Tile(run=run, first=first, last=min(first + size, run.length), low=low)


def _sum_like(tensor: Tensor) -> Tensor:
    """Zeros to add gradients up in, in float32 at least."""
    return torch.zeros(tensor.shape, dtype=torch.promote_types(tensor.dtype, torch.float32), device=tensor.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Tokens at flat positions `start` to `start + length`, after the first `shared` of the sequence at `root`."""

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
