"""Build batches: groups become sequences in rows, and rows become micro-batches, the same number on every rank.

Numpy only and pure. Every per-token array of an update is flat, `[N]` over the ACTION tokens of all trainable samples
in order; a micro-batch carries its slices of them and their `places`, so that answers find their way back. A rank's
columns are flat too, `[A]` over the ACTION tokens of its minibatches in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import NotFinite
from rlhf.trainer.aggregation import Aggregation, denominator, token_weights
from rlhf.trainer.batching.packing import Row, cut_microbatches, deal, pack_rows
from rlhf.trainer.batching.prefix_group import PrefixGroup, TokenSequence, group_by_prefix, laid_out
from rlhf.trainer.rewards import EpisodeRewards, episode_rewards
from rlhf.types import EpisodeStatus, Group, PolicyVersion, Routing, Segment

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

ROW_TOKENS = 512
"""Long enough for a group of short samples, so that its prompt is computed once, and short enough to distribute rows
evenly over ranks with little empty space. Attention is computed in blocks of sequences (`rlhf.models.blocks`), so the
row length adds no cost there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerToken:
    """Columns over ACTION tokens, all `float32` of one length; None where a column is not needed.

    `behaviour`, `proximal` and `reference` are log-probs of the policy that sampled, of the learner before the update
    and of the reference; `values` and `returns` the critic's estimates before the update and its targets. `weights` is
    a token's weight in the loss before the division by the denominator of its optimizer step. `current` is 1 for tokens
    sampled by the weights that the update starts from, else 0.
    """

    behaviour: Floats
    weights: Floats
    advantages: Floats
    proximal: Floats | None = None
    reference: Floats | None = None
    values: Floats | None = None
    returns: Floats | None = None
    current: Floats | None = None

    def at(self, places: Ints) -> PerToken:
        """Every column at `places`."""
        columns = {field.name: column for field in fields(self) if (column := getattr(self, field.name)) is not None}
        return PerToken(**{name: column[places] for name, column in columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What one update trains on. `sequences[i]` belongs to sample `sequence_samples[i]`, that to group
    `sample_groups[s]`; sample `s` owns the flat range `offsets[s]:offsets[s + 1]` of `per_token` and is known as
    `samples[s]`, its `(ordinal, sample index)`. `rewards` are the episodes', None of demonstrations and pairs.
    """

    sequences: tuple[TokenSequence, ...]
    sequence_samples: Ints
    sample_groups: Ints
    samples: tuple[tuple[int, int], ...]
    offsets: Ints
    per_token: PerToken
    groups: int
    rewards: EpisodeRewards | None = None

    @property
    def tokens(self) -> int:
        """Number of ACTION tokens."""
        return len(self.per_token.weights)

    def per_sample(self, values: Floats) -> list[Floats]:
        """Split a flat array `[N]` into one array per sample."""
        return np.split(values, self.offsets[1:-1]) if self.samples else []

    def with_columns(self, **columns: Floats | None) -> Batch:
        """The same batch with these columns of `per_token` replaced."""
        return replace(self, per_token=replace(self.per_token, **columns))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """The data of one forward and backward pass: `token_ids`, `position_ids` `int32 [R, L]`, several prefix groups per
    row, positions starting at 0 in each. Over its ACTION tokens, `[A]`: `targets` their index in the flattened `[R *
    L]`, `sources` that of the token before each in its sequence, `places` their index in the batch's flat arrays,
    `sequences` the number of their sequence within the micro-batch; `per_token` its columns. Over its sequences, `[S]`:
    `ends` is the flat index of the last token, `samples` the number of the sample in the batch. A micro-batch without
    action tokens is padding, and is computed like any other. `most` is the largest A of the micro-batches that ranks
    compute at the same time. `routing` `int16 [R, L, layers, k]` are the experts that the engine chose, -1 where they
    are unknown; None where they were not requested."""

    token_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    sources: Ints
    targets: Ints
    places: Ints
    sequences: Ints
    ends: Ints
    samples: Ints
    per_token: PerToken
    most: int = 0
    routing: Routing | None = None

    @property
    def tokens(self) -> int:
        return int(self.token_ids.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Minibatch:
    """One rank's part of one optimizer step; `denominator` is that of the whole step's loss over all ranks, `tokens`
    its number of ACTION tokens and `samples` its number of samples with any."""

    microbatches: tuple[MicroBatch, ...]
    denominator: float
    tokens: int
    samples: int


def microbatches_of(minibatches: Sequence[Minibatch]) -> Iterator[MicroBatch]:
    """All of a rank's part, in order."""
    return (microbatch for minibatch in minibatches for microbatch in minibatch.microbatches)


def places_of(minibatches: Sequence[Minibatch]) -> Ints:
    """The places of a rank's ACTION tokens, `[A]`."""
    return np.concatenate([np.zeros(0, np.int64), *(one.places for one in microbatches_of(minibatches))])


def with_rank_columns(minibatches: Sequence[Minibatch], columns: Mapping[str, Floats]) -> tuple[Minibatch, ...]:
    """The same minibatches, their `per_token` with these columns of the rank, `[A]`."""
    filled, start = [], 0
    for minibatch in minibatches:
        microbatches = []
        for microbatch in minibatch.microbatches:
            own = slice(start, start := start + len(microbatch.places))
            per_token = replace(microbatch.per_token, **{name: column[own] for name, column in columns.items()})
            microbatches.append(replace(microbatch, per_token=per_token))
        filled.append(replace(minibatch, microbatches=tuple(microbatches)))
    return tuple(filled)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One sample to be put into a batch: its segments, its group and identity, and its `weight` in the loss."""

    segments: tuple[Segment, ...]
    group: int
    identity: tuple[int, int]
    weight: float = 1.0


def build_batch(
    groups: Sequence[Group],
    *,
    aggregation: Aggregation = "token_mean",
    mask_truncated: bool = False,
    version: PolicyVersion | None = None,
) -> Batch:
    """The trainable samples of `groups` and their rewards. With `mask_truncated` those that were cut off weigh nothing.
    `version` is that of the learner's weights, None where the tokens' versions are not this learner's. Raises
    `NotFinite` for a reward or a log-prob that is NaN or infinity."""
    batch = assemble(
        [
            Entry(
                segments=trajectory.segments,
                group=g,
                identity=(group.ticket.ordinal, index),
                weight=float(not (mask_truncated and trajectory.status is EpisodeStatus.TRUNCATED)),
            )
            for g, group in enumerate(groups)
            for index, trajectory, _ in group.trainable
        ],
        groups=len(groups),
        aggregation=aggregation,
        version=version,
    )
    return replace(batch, rewards=episode_rewards(groups))


def assemble(
    entries: Sequence[Entry],
    *,
    groups: int,
    aggregation: Aggregation = "token_mean",
    version: PolicyVersion | None = None,
) -> Batch:
    """Concatenate the entries' ACTION tokens in order."""
    segments = [(n, segment) for n, e in enumerate(entries) for segment in e.segments if segment.action_mask.any()]
    sizes = [int(segment.action_mask.sum()) for _, segment in segments]
    lengths = np.array([sum(int(s.action_mask.sum()) for s in e.segments) for e in entries], np.int64)
    starts = np.cumsum([0, *sizes])
    behaviour = [_finite(segment.logprobs[segment.action_mask]) for _, segment in segments]
    current = [segment.versions[segment.action_mask] == version for _, segment in segments]
    chosen = next((segment.routing.shape[1:] for _, segment in segments if segment.routing is not None), None)
    return Batch(
        sequences=tuple(
            _sequence(segment, int(start), chosen) for (_, segment), start in zip(segments, starts, strict=False)
        ),
        sequence_samples=np.array([n for n, _ in segments], np.int64),
        sample_groups=np.array([e.group for e in entries], np.int64),
        samples=tuple(e.identity for e in entries),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        per_token=PerToken(
            behaviour=np.concatenate([np.zeros(0), *behaviour]).astype(np.float32),
            weights=np.repeat(_sample_weights(entries, lengths, aggregation), lengths),
            advantages=np.zeros(int(lengths.sum()), np.float32),
            current=None if version is None else np.concatenate([np.zeros(0), *current]).astype(np.float32),
        ),
        groups=groups,
    )


def build_minibatches(
    batch: Batch,
    *,
    minibatches: int,
    ranks: int,
    tokens_per_microbatch: int,
    row_tokens: int = ROW_TOKENS,
    aggregation: Aggregation = "token_mean",
    constant_tokens: float = 1.0,
    whole_groups: bool = False,
) -> list[tuple[Minibatch, ...]]:
    """Split a batch for the ranks: `result[rank][step]`. Steps contain whole groups in order; a step without action
    tokens is left out. In every step all ranks have the same number of micro-batches and the same denominator.

    A row holds about `row_tokens`, a micro-batch up to `tokens_per_microbatch` (never less than its longest sequence).
    `aggregation` and `constant_tokens` determine the denominator (`rlhf.trainer.aggregation`). With `whole_groups` the
    sequences of a group, which must share their context, are never split over rows, however long.
    """
    steps = []
    for groups in np.array_split(np.arange(batch.groups), minibatches):
        chosen = np.flatnonzero(np.isin(batch.sample_groups[batch.sequence_samples], groups))
        if len(chosen):
            row = min(row_tokens, tokens_per_microbatch)
            if whole_groups:
                prefix_groups = _one_a_group(batch, chosen)
            else:
                prefix_groups = group_by_prefix(_at(batch, chosen), row, tokens_per_microbatch)
            shares = _shares(batch, prefix_groups, ranks, tokens_per_microbatch, row)
            steps.append(_minibatches(batch, chosen, shares, aggregation, constant_tokens))
    return [tuple(step[rank] for step in steps) for rank in range(ranks)]


def _finite(logprobs: Floats) -> Floats:
    if not np.isfinite(logprobs).all():
        raise NotFinite("the engine's log-prob of a sampled token is no number; it cannot be trained")
    return logprobs


def _sequence(segment: Segment, place: int, chosen: tuple[int, ...] | None) -> TokenSequence:
    """A segment for the ranks; its experts, `chosen` a token, where those of any segment are known."""
    actions = np.flatnonzero(segment.action_mask).astype(np.int64)
    if actions[0] == 0:
        raise ValueError("a segment starts with an ACTION token: nothing precedes it that it could be conditioned on")
    routing = segment.routing
    if routing is None and chosen is not None:
        routing = np.full((len(segment.token_ids), *chosen), -1, np.int16)
    return TokenSequence(token_ids=segment.token_ids, actions=actions, place=place, routing=routing)


def _sample_weights(entries: Sequence[Entry], lengths: Ints, aggregation: Aggregation) -> Floats:
    shares = token_weights(lengths, aggregation)
    return (np.array([entry.weight for entry in entries], np.float64) * shares).astype(np.float32)


def _at(batch: Batch, chosen: Ints) -> list[TokenSequence]:
    return [batch.sequences[index] for index in chosen]


def _one_a_group(batch: Batch, chosen: Ints) -> list[PrefixGroup]:
    """A prefix group for every group, in order."""
    groups = batch.sample_groups[batch.sequence_samples[chosen]]
    return [PrefixGroup(sequences=tuple(_at(batch, chosen[groups == group]))) for group in np.unique(groups)]


def _shares(
    batch: Batch, prefix_groups: Sequence[PrefixGroup], ranks: int, microbatch_tokens: int, row_tokens: int
) -> list[tuple[MicroBatch, ...]]:
    """The micro-batches of each rank, as many for one as for another."""
    rows = pack_rows([prefix_group.tokens for prefix_group in prefix_groups], row_tokens)
    shares = [cut_microbatches(share, microbatch_tokens) for share in deal(rows, ranks)]
    count = max(len(share) for share in shares)
    made = [
        [_microbatch(batch, prefix_groups, part) for part in share + [[]] * (count - len(share))] for share in shares
    ]
    most = [max(len(microbatch.targets) for microbatch in together) for together in zip(*made, strict=True)]
    return [tuple(replace(own, most=largest) for own, largest in zip(share, most, strict=True)) for share in made]


def _minibatches(
    batch: Batch,
    chosen: Ints,
    shares: Sequence[tuple[MicroBatch, ...]],
    aggregation: Aggregation,
    constant_tokens: float,
) -> list[Minibatch]:
    """One step's minibatch of every rank. Samples that weigh nothing are in no denominator."""
    samples = np.unique(batch.sequence_samples[chosen])
    lengths = np.diff(batch.offsets)[samples]
    live = batch.per_token.weights[batch.offsets[samples]] > 0
    whole = denominator(lengths[live], aggregation, constant_tokens)
    return [
        Minibatch(microbatches=share, denominator=whole, tokens=int(lengths.sum()), samples=len(samples))
        for share in shares
    ]


def _microbatch(batch: Batch, prefix_groups: Sequence[PrefixGroup], rows: Sequence[Row]) -> MicroBatch:
    length = max((row.tokens for row in rows), default=1)
    token_ids = np.zeros((max(len(rows), 1), length), np.int32)
    # Position 0 for every pad: each is a sequence of its own, seen by nobody.
    position_ids = np.zeros_like(token_ids)
    routing = _no_routing(batch, token_ids.shape)
    empty = np.zeros(0, np.int64)
    sources, targets, places, ends, sizes = [empty], [empty], [empty], [empty], [empty]
    for r, row in enumerate(rows):
        start = 0
        for layout in (laid_out(prefix_groups[index]) for index in row.members):
            stop = start + len(layout.token_ids)
            token_ids[r, start:stop] = layout.token_ids
            position_ids[r, start:stop] = layout.position_ids
            if routing is not None and layout.routing is not None:
                routing[r, start:stop] = layout.routing
            sources.append(r * length + start + layout.sources)
            targets.append(r * length + start + layout.targets)
            places.append(layout.places)
            ends.append(r * length + start + layout.ends)
            sizes.append(layout.sizes)
            start = stop
    flat, actions = np.concatenate(places), np.concatenate(sizes)
    firsts = flat[np.cumsum(actions) - actions]
    return MicroBatch(
        token_ids=token_ids,
        position_ids=position_ids,
        sources=np.concatenate(sources),
        targets=np.concatenate(targets),
        places=flat,
        sequences=np.repeat(np.arange(len(actions)), actions),
        ends=np.concatenate(ends),
        samples=np.searchsorted(batch.offsets, firsts, side="right") - 1,
        per_token=batch.per_token.at(flat),
        routing=routing,
    )


def _no_routing(batch: Batch, shape: tuple[int, ...]) -> Routing | None:
    """Experts of `[R, L]` tokens, none of them known yet; None for a batch without any."""
    known = batch.sequences[0].routing if batch.sequences else None
    return None if known is None else np.full((*shape, *known.shape[1:]), -1, np.int16)
