"""From groups to what the ranks compute on: sequences in rows, rows in micro-batches, in equal numbers a rank.

Numpy only and pure. Every per-token array of an update is flat, `[N]` over the ACTION tokens of all trainable samples
in order; a micro-batch carries its slices of them and their `places`, so that answers find their way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.bundle import Bundle, Strand, bundled, laid_out
from rlhf.trainer.packing import Row, cut, deal, pack
from rlhf.types import Group, Segment

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

ROW_TOKENS = 128
"""Attention over a row costs the square of its length, while rows of a micro-batch share every matrix product: on 64
sequences of 40 tokens, rows of 128 take 0.165 s a step and rows of 480 take 0.195 s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What one update trains on. `strands[i]` belongs to group `strand_groups[i]`; sample `s` owns the flat range
    `offsets[s]:offsets[s + 1]`; `samples[s]` is its `(ordinal, sample index)`.

    `weights` is a token's share in the loss before the division by the denominator of its optimizer step.
    """

    strands: tuple[Strand, ...]
    strand_groups: tuple[int, ...]
    samples: tuple[tuple[int, int], ...]
    offsets: Ints
    behaviour_logprobs: Floats
    advantages: Floats
    weights: Floats
    groups: int

    def per_sample(self, values: Floats) -> list[Floats]:
        """Cut a flat array `[N]` into one array a sample."""
        return np.split(values, self.offsets[1:-1]) if self.samples else []


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One forward and backward pass: `token_ids`, `position_ids` `int32 [R, L]`, several bundles a row, positions
    starting at 0 in each. The rest is `[A]` over its ACTION tokens: `targets` their index in the flattened `[R * L]`,
    `sources` that of the token before each in its sequence, `places` their index in the batch's flat arrays. One
    without action tokens is padding, computed like any other.
    """

    token_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    sources: Ints
    targets: Ints
    places: Ints
    behaviour_logprobs: Floats
    advantages: Floats
    weights: Floats

    @property
    def tokens(self) -> int:
        return int(self.token_ids.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Minibatch:
    """One rank's part of one optimizer step; `denominator` is that of the whole step over all ranks."""

    microbatches: tuple[MicroBatch, ...]
    denominator: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One sample on its way into a batch: its segments, its advantage, and who it is."""

    segments: tuple[Segment, ...]
    advantage: float
    group: int
    identity: tuple[int, int]


def build_batch(groups: Sequence[Group], advantages: Sequence[Floats], *, aggregation: str = "token_mean") -> Batch:
    """The trainable samples of `groups`. `advantages[g][i]` belongs to the i-th trainable sample of group g.

    `aggregation` is `token_mean` (every action token weighs 1) or `sequence_mean` (every sample weighs 1).
    """
    return assemble(
        [
            Entry(segments=trajectory.segments, advantage=float(value), group=g, identity=(group.ticket.ordinal, index))
            for g, (group, values) in enumerate(zip(groups, advantages, strict=True))
            for (index, trajectory, _), value in zip(group.trainable, values, strict=True)
        ],
        groups=len(groups),
        aggregation=aggregation,
    )


def assemble(entries: Sequence[Entry], *, groups: int, aggregation: str = "token_mean") -> Batch:
    """Lay the entries' ACTION tokens out flat, in order."""
    segments = [(e.group, segment) for e in entries for segment in e.segments if segment.action_mask.any()]
    sizes = [int(segment.action_mask.sum()) for _, segment in segments]
    lengths = np.array([sum(int(s.action_mask.sum()) for s in e.segments) for e in entries], np.int64)
    starts = np.cumsum([0, *sizes])
    behaviour = [segment.logprobs[segment.action_mask] for _, segment in segments]
    return Batch(
        strands=tuple(_strand(segment, int(start)) for (_, segment), start in zip(segments, starts, strict=False)),
        strand_groups=tuple(group for group, _ in segments),
        samples=tuple(e.identity for e in entries),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        behaviour_logprobs=np.concatenate([np.zeros(0), *behaviour]).astype(np.float32),
        advantages=np.repeat(np.array([e.advantage for e in entries], np.float32), lengths),
        weights=np.repeat(_sample_weights(lengths, aggregation), lengths),
        groups=groups,
    )


def build_minibatches(
    batch: Batch, *, minibatches: int, ranks: int, tokens_per_microbatch: int, row_tokens: int = ROW_TOKENS
) -> list[tuple[Minibatch, ...]]:
    """Cut a batch for the ranks: `result[rank][step]`. Steps hold whole groups in order; one without action tokens is
    left out. In every step all ranks have the same number of micro-batches and the same denominator.

    A row holds about `row_tokens`, a micro-batch up to `tokens_per_microbatch` (never less than its longest sequence).
    """
    steps = [
        step
        for chosen in np.array_split(np.arange(batch.groups), minibatches)
        if (step := _step(batch, set(chosen.tolist()), ranks, tokens_per_microbatch, row_tokens))
    ]
    return [tuple(step[rank] for step in steps) for rank in range(ranks)]


def _strand(segment: Segment, place: int) -> Strand:
    actions = np.flatnonzero(segment.action_mask).astype(np.int64)
    if actions[0] == 0:
        raise ValueError("a segment starts with an ACTION token: nothing precedes it that it could be conditioned on")
    return Strand(token_ids=segment.token_ids, actions=actions, place=place)


def _sample_weights(lengths: Ints, aggregation: str) -> Floats:
    if aggregation == "token_mean":
        return np.ones(len(lengths), np.float32)
    return (1.0 / np.maximum(lengths, 1)).astype(np.float32)


def _step(batch: Batch, groups: set[int], ranks: int, microbatch_tokens: int, row_tokens: int) -> list[Minibatch]:
    chosen = [strand for strand, group in zip(batch.strands, batch.strand_groups, strict=True) if group in groups]
    if not chosen:
        return []
    owned = np.concatenate([np.arange(s.place, s.place + len(s.actions)) for s in chosen])
    denominator = float(np.round(batch.weights[owned].astype(np.float64).sum()))
    row_tokens = min(row_tokens, microbatch_tokens)
    bundles = bundled(chosen, row_tokens)
    rows = pack([bundle.tokens for bundle in bundles], row_tokens)
    shares = [cut(share, microbatch_tokens) for share in deal(rows, ranks)]
    count = max(len(share) for share in shares)
    return [
        Minibatch(
            microbatches=tuple(_microbatch(batch, bundles, part) for part in share + [[]] * (count - len(share))),
            denominator=denominator,
        )
        for share in shares
    ]


def _microbatch(batch: Batch, bundles: Sequence[Bundle], rows: Sequence[Row]) -> MicroBatch:
    length = max((row.tokens for row in rows), default=1)
    token_ids = np.zeros((max(len(rows), 1), length), np.int32)
    # Position 0 for every pad: each is a sequence of its own, seen by nobody.
    position_ids = np.zeros_like(token_ids)
    empty = np.zeros(0, np.int64)
    sources, targets, places = [empty], [empty], [empty]
    for r, row in enumerate(rows):
        start = 0
        for layout in (laid_out(bundles[index]) for index in row.members):
            stop = start + len(layout.token_ids)
            token_ids[r, start:stop] = layout.token_ids
            position_ids[r, start:stop] = layout.position_ids
            sources.append(r * length + start + layout.sources)
            targets.append(r * length + start + layout.targets)
            places.append(layout.places)
            start = stop
    flat = np.concatenate(places)
    return MicroBatch(
        token_ids=token_ids,
        position_ids=position_ids,
        sources=np.concatenate(sources),
        targets=np.concatenate(targets),
        places=flat,
        behaviour_logprobs=batch.behaviour_logprobs[flat],
        advantages=batch.advantages[flat],
        weights=batch.weights[flat],
    )
