"""Build batches: groups become sequences in rows, and rows become micro-batches, the same number on every rank.

Numpy only and pure. Every per-token array of an update is flat, `[N]` over the ACTION tokens of all trainable samples
in order; a micro-batch carries its part of them and their `places`, so that answers find their way back. A rank's
columns are flat too, `[A]` over the ACTION tokens of its minibatches in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import NotFinite
from rlhf.images import ImageFeatures, RowImages, row_images
from rlhf.trainer.aggregation import Aggregation, denominator, token_weights
from rlhf.trainer.arrays import Doubles, Floats, Ints, in_rows, mask_of
from rlhf.trainer.batching.packing import PrefixGroup, cut_microbatches, deal, group_by_prefix, one_context, pack_rows
from rlhf.trainer.config import OverlongConfig
from rlhf.trainer.credit.rewards import earned_columns
from rlhf.types import EpisodeStatus, Group, PolicyVersion, Routing, Segment

ROW_TOKENS = 512
"""Long enough for a group of short samples, so that its prompt is computed once, and short enough to distribute rows
evenly over ranks with little empty space. Attention is computed in blocks of sequences (`rlhf.models.blocks`), so the
row length adds no cost there."""
EMPTY: Mapping[str, Any] = {kind: partial(np.zeros, 0, kind) for kind in ("float64", "int64", "bool")}
COLUMNS = (
    "behaviour_logprobs", "loss_weights", "advantages", "current", "proximal_logprobs", "reference_logprobs", "values",
    "returns",
)  # fmt: skip
"""Names of columns over ACTION tokens, of a batch and of a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The data of one update. `sequences[i]`, a segment with ACTION tokens, belongs to sample `sequence_samples[i]`,
    and its first ACTION token is `starts[i]` of the flat arrays. Sample `s` belongs to group `sample_groups[s]`, owns
    the flat range `offsets[s]:offsets[s + 1]` of each column and is known as `samples[s]`, its `(ordinal, sample
    index)`. The last `second_uses` of the `group_count` groups are second uses.

    Columns over ACTION tokens are `float32 [N]`, and None where they are not needed. `behaviour_logprobs` are those of
    the policy that sampled, `proximal_logprobs` the learner's before the update; `values` and `returns` the critic's
    estimates before the update and its targets. `loss_weights` weigh tokens in the loss before the division by the
    denominator of their optimizer step. `current` is 1 for tokens sampled by the weights that the update starts from,
    else 0. `advantages` are 0 until they are estimated.

    Columns of what episodes earned are empty for demonstrations and pairs. Over samples, `[B]`: `scores` with the
    length penalty; `outcomes`, the scores minus, where KL is in the reward, the sum of `kl`; `groups`, the number of
    the comparison group (the same role in the same group); `baselines`, the outcome of the group's greedy episode, None
    if a group lacks one; `bootstrapped`, where an episode was truncated and is rewarded by its turns alone;
    `last_values`, the critic's after the last token. Over ACTION tokens, `float64 [N]`: `turns` numbers the turns of an
    episode; `rewards` sum to the outcome: those of turns, with their weight in the outcome, at the turns' last tokens,
    the rest at the very last token, KL everywhere; `kl` is each token's KL to the reference times its price.
    """

    sequences: tuple[Segment, ...]
    starts: Ints
    sequence_samples: Ints
    sample_groups: Ints
    samples: tuple[tuple[int, int], ...]
    offsets: Ints
    group_count: int
    second_uses: int = 0
    behaviour_logprobs: Floats
    loss_weights: Floats
    advantages: Floats
    current: Floats | None = None
    proximal_logprobs: Floats | None = None
    reference_logprobs: Floats | None = None
    values: Floats | None = None
    returns: Floats | None = None
    scores: Doubles = field(default_factory=EMPTY["float64"])
    outcomes: Doubles = field(default_factory=EMPTY["float64"])
    groups: Ints = field(default_factory=EMPTY["int64"])
    baselines: Doubles | None = None
    bootstrapped: NDArray[np.bool_] = field(default_factory=EMPTY["bool"])
    last_values: Floats | None = None
    turns: Ints = field(default_factory=EMPTY["int64"])
    rewards: Doubles = field(default_factory=EMPTY["float64"])
    kl: Doubles = field(default_factory=EMPTY["float64"])

    @property
    def tokens(self) -> int:
        """Number of ACTION tokens."""
        return len(self.loss_weights)

    @property
    def lengths(self) -> Ints:
        """Number of ACTION tokens of every sample, `[B]`."""
        return np.diff(self.offsets)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Where `rows` have a token, `[B, T]`."""
        return mask_of(self.lengths)

    def rows(self, column: NDArray[Any]) -> Doubles:
        """Return a column `[N]` with a sample in each row, `[B, T]`, 0 after its last token."""
        return in_rows(column, self.lengths)

    @property
    def bootstrap(self) -> Doubles:
        """The critic's value of the state after the last token, `[B]`, where it is `bootstrapped`, else 0. An episode
        that is scored as a whole is paid at its end, and nothing is left to come: with a bootstrap it would be paid
        twice, and the policy would learn never to stop. It makes no difference whether a turn was paid."""
        last = np.zeros(len(self.samples)) if self.last_values is None else self.last_values.astype(np.float64)
        return np.where(self.bootstrapped, last, 0.0)

    def per_sample(self, values: Floats) -> list[Floats]:
        """Split a flat array `[N]` into one array per sample."""
        return np.split(values, self.offsets[1:-1]) if self.samples else []

    def columns_at(self, places: Ints, names: Sequence[str] = COLUMNS) -> dict[str, Floats]:
        """Return the columns that exist so far, at `places`."""
        return {name: column[places] for name in names if (column := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """The data of one forward and backward pass: `token_ids`, `position_ids` `int32 [R, L]`, several prefix groups per
    row, positions starting at 0 in each. Over its ACTION tokens, `[A]`: `targets` their index in the flattened `[R *
    L]`, `sources` that of the token before each in its sequence, `places` their index in the batch's flat arrays,
    `sequences` the number of their sequence within the micro-batch; and the columns of `Batch`. Over its sequences,
    `[S]`: `ends` is the flat index of the last token, `samples` the number of the sample in the batch. A micro-batch
    without action tokens is padding, and is computed like any other. `most` is the largest A of the micro-batches that
    ranks compute at the same time. `routing` `int16 [R, L, layers, k]` are the experts that the engine chose, -1 where
    they are unknown; None where they were not requested. In a batch with `images`, a
    micro-batch without any has one without a place.

    Of its optimizer step, over all ranks: the `denominator` of the loss, the number of ACTION tokens `step_tokens`, and
    the number of samples with any, `step_samples`."""

    token_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    sources: Ints
    targets: Ints
    places: Ints
    sequences: Ints
    ends: Ints
    samples: Ints
    most: int = 0
    routing: Routing | None = None
    images: RowImages | None = None
    denominator: float = 1.0
    step_tokens: int = 0
    step_samples: int = 0
    behaviour_logprobs: Floats
    loss_weights: Floats
    advantages: Floats
    current: Floats | None = None
    proximal_logprobs: Floats | None = None
    reference_logprobs: Floats | None = None
    values: Floats | None = None
    returns: Floats | None = None

    @property
    def tokens(self) -> int:
        return int(self.token_ids.size)


Minibatch = tuple[MicroBatch, ...]
"""One rank's part of one optimizer step."""


def places_of(minibatches: Sequence[Minibatch]) -> Ints:
    """Return the places of a rank's ACTION tokens, `[A]`."""
    return np.concatenate([np.zeros(0, np.int64), *(microbatch.places for microbatch in chain(*minibatches))])


def filled(minibatches: Sequence[Minibatch], columns: Mapping[str, Floats]) -> list[Minibatch]:
    """Return the same minibatches with more columns, each `[A]` over the ACTION tokens of all in order."""
    stops = np.cumsum([len(microbatch.places) for microbatch in chain(*minibatches)])
    parts = {name: iter(np.split(column, stops[:-1])) for name, column in columns.items()}
    return [
        tuple(replace(micro, **{name: next(own) for name, own in parts.items()}) for micro in minibatch)  # type: ignore[arg-type]
        for minibatch in minibatches
    ]


def build_batch(
    groups: Sequence[Group],
    *,
    aggregation: Aggregation = "token_mean",
    overlong: OverlongConfig = OverlongConfig(),  # noqa: B008 - frozen
    max_tokens: int = 0,
    version: PolicyVersion | None = None,
) -> Batch:
    """Return the trainable samples of `groups` and what they earned, less the penalty of `overlong` replies, whose
    limit is `max_tokens`. `version` is that of the learner's weights, None where the tokens' versions are not this
    learner's. Raises `NotFinite` for a reward or a log-prob that is NaN or infinity."""
    trained = [(g, group, index, trajectory)
               for g, group in enumerate(groups) for index, trajectory, _ in group.trainable]  # fmt: skip
    cut_off = [trajectory.status is EpisodeStatus.TRUNCATED for _, _, _, trajectory in trained]
    batch = assemble(
        [trajectory.segments for _, _, _, trajectory in trained],
        sample_groups=[g for g, _, _, _ in trained],
        samples=[(group.ticket.ordinal, index) for _, group, index, _ in trained],
        sample_weights=1.0 - np.array(cut_off, np.float64) if overlong.mask_truncated else None,
        groups=len(groups),
        aggregation=aggregation,
        version=version,
    )
    earned = earned_columns(groups, batch.lengths, overlong, max_tokens)
    return replace(batch, second_uses=sum(group.second_use for group in groups), **earned)


def assemble(
    segments: Sequence[Sequence[Segment]],
    *,
    sample_groups: Sequence[int],
    samples: Sequence[tuple[int, int]],
    sample_weights: NDArray[np.float64] | None = None,
    groups: int,
    aggregation: Aggregation = "token_mean",
    version: PolicyVersion | None = None,
) -> Batch:
    """Return a batch of samples, each with its segments, its group of `groups`, its identity, and its weight in the
    loss (1 by default)."""
    masks = [(s, segment, segment.action_mask) for s, own in enumerate(segments) for segment in own]
    counts = [np.count_nonzero(mask) for _, _, mask in masks]
    acting = [one for one, count in zip(masks, counts, strict=True) if count]
    sizes = np.array([count for count in counts if count], np.int64)
    sequence_samples = np.array([s for s, _, _ in acting], np.int64)
    lengths = np.bincount(sequence_samples, weights=sizes, minlength=len(segments)).astype(np.int64)
    current = [segment.versions[mask] == version for _, segment, mask in acting]
    weights = token_weights(lengths, aggregation) * (1.0 if sample_weights is None else sample_weights)
    behaviour = _joined([segment.behaviour_logprobs[mask] for _, segment, mask in acting])
    if any(mask[0] for _, _, mask in acting):
        raise ValueError("a segment starts with an ACTION token: nothing precedes it that it could be conditioned on")
    if not np.isfinite(behaviour).all():
        raise NotFinite("the engine's log-prob of a sampled token is not a number; it cannot be trained")
    return Batch(
        sequences=tuple(segment for _, segment, _ in acting),
        starts=np.cumsum(sizes) - sizes,
        sequence_samples=sequence_samples,
        sample_groups=np.array(sample_groups, np.int64),
        samples=tuple(samples),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        group_count=groups,
        behaviour_logprobs=behaviour,
        loss_weights=np.repeat(weights.astype(np.float32), lengths),
        advantages=np.zeros(int(lengths.sum()), np.float32),
        current=None if version is None else _joined(current),
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
    packed: bool = True,
) -> list[tuple[Minibatch, ...]]:
    """Split a batch for the ranks: `result[rank][step]`. Steps contain whole groups in order, and equal parts of the
    second uses; a step without action tokens is left out. In every step all ranks have the same number of
    micro-batches and the same denominator.

    A row holds about `row_tokens`, a micro-batch up to `tokens_per_microbatch` (never less than its longest sequence).
    `aggregation` and `constant_tokens` determine the denominator (`rlhf.trainer.aggregation`). With `whole_groups` the
    sequences of a group, which must share their context, are never split over rows, however long. Unless `packed`, any
    other row is one sequence.
    """
    steps: list[list[Minibatch]] = []
    first, again = np.split(np.arange(batch.group_count), [batch.group_count - batch.second_uses])
    parts = zip(np.array_split(first, minibatches), np.array_split(again, minibatches)[::-1], strict=True)
    for groups in map(np.concatenate, parts):
        chosen = np.flatnonzero(np.isin(batch.sample_groups[batch.sequence_samples], groups))
        if len(chosen):
            row = min(row_tokens, tokens_per_microbatch) if packed else 1
            if whole_groups:
                of_group = batch.sample_groups[batch.sequence_samples[chosen]]
                each = [chosen[of_group == group].tolist() for group in np.unique(of_group)]
                prefix_groups = [one_context(batch.sequences, members) for members in each]
            elif not packed:
                prefix_groups = [one_context(batch.sequences, [n]) for n in chosen.tolist()]
            else:
                prefix_groups = group_by_prefix(
                    batch.sequences, chosen.tolist(), batch.sequence_samples, row, tokens_per_microbatch
                )
            samples = np.unique(batch.sequence_samples[chosen])
            lengths = batch.lengths[samples]
            live = batch.loss_weights[batch.offsets[samples]] > 0  # samples without weight count in no denominator
            step = {
                "denominator": denominator(lengths[live], aggregation, constant_tokens),
                "step_tokens": int(lengths.sum()),
                "step_samples": len(samples),
            }
            steps.append(_minibatches(batch, prefix_groups, ranks, tokens_per_microbatch, row, step))
    return [tuple(made[rank] for made in steps) for rank in range(ranks)]


def _joined(columns: Sequence[NDArray[Any]]) -> Floats:
    joined: Floats = np.concatenate([np.zeros(0, np.float32), *columns], dtype=np.float32)
    return joined


def _minibatches(
    batch: Batch,
    prefix_groups: Sequence[PrefixGroup],
    ranks: int,
    microbatch_tokens: int,
    row_tokens: int,
    step: Mapping[str, Any],
) -> list[Minibatch]:
    """Return one `step`'s minibatch of every rank, all with the same number of micro-batches."""
    lengths = [group.tokens(batch.sequences) for group in prefix_groups]
    rows = pack_rows(lengths, row_tokens)
    shares = [cut_microbatches(share, lengths, microbatch_tokens) for share in deal(rows, lengths, ranks)]
    count = max(len(share) for share in shares)
    made = [
        [
            _microbatch(batch, [[prefix_groups[index] for index in row] for row in part])
            for part in share + [[]] * (count - len(share))
        ]
        for share in shares
    ]
    most = [max(len(microbatch.targets) for microbatch in together) for together in zip(*made, strict=True)]
    return [tuple(replace(own, most=m, **step) for own, m in zip(share, most, strict=True)) for share in made]


def _microbatch(batch: Batch, rows: Sequence[Sequence[PrefixGroup]]) -> MicroBatch:
    """Rows of prefix groups: the shared tokens once, then every sequence's own. Their positions continue from the
    tokens that they share, from which the attention derives its mask (`rlhf.models.blocks`)."""
    length = max((sum(group.tokens(batch.sequences) for group in row) for row in rows), default=1)
    token_ids = np.zeros((max(len(rows), 1), length), np.int32)
    # Position 0 for every pad: each is a separate sequence that no other token sees.
    position_ids = np.zeros_like(token_ids)
    routing = _unknown_routing(batch, token_ids.shape)
    images = list[tuple[int, ImageFeatures]]()
    empty = np.zeros(0, np.int64)
    sources, targets, places, ends, sizes = [empty], [empty], [empty], [], []

    def put(row: int, column: int, segment: Segment, first: int, stop: int) -> None:
        """Write the tokens from `first` to `stop` of a segment into a row, from `column` on."""
        own, there = slice(first, stop), slice(column, column + stop - first)
        token_ids[row, there] = segment.token_ids[own]
        position_ids[row, there] = np.arange(first, stop)
        if routing is not None and segment.routing is not None:
            routing[row, there] = segment.routing[own]
        begin = row * length + column - first
        images.extend((begin + one.start, one.features) for one in segment.images if first <= one.start < stop)

    for r, row in enumerate(rows):
        stop = 0
        for group in row:
            root = r * length + stop
            put(r, stop, batch.sequences[group.members[0]], 0, group.shared[0])
            stop += group.shared[0]
            for n, shared in zip(group.members, group.shared, strict=True):
                segment = batch.sequences[n]
                put(r, stop, segment, shared, len(segment.token_ids))
                every = np.arange(len(segment.token_ids))
                where = every + np.where(every < shared, root, r * length + stop - shared)
                actions = np.flatnonzero(segment.action_mask)
                stop += len(segment.token_ids) - shared
                targets.append(where[actions])
                sources.append(where[actions - 1])
                places.append(batch.starts[n] + np.arange(len(actions)))
                ends.append(where[-1])
                sizes.append(len(actions))
    flat = np.concatenate(places)
    firsts = flat[np.cumsum([0, *sizes])[:-1]]
    return MicroBatch(
        token_ids=token_ids,
        position_ids=position_ids,
        sources=np.concatenate(sources),
        targets=np.concatenate(targets),
        places=flat,
        sequences=np.repeat(np.arange(len(sizes)), sizes),
        ends=np.array(ends, np.int64),
        samples=np.searchsorted(batch.offsets, firsts, side="right") - 1,
        routing=routing,
        images=row_images(images, chain.from_iterable(segment.images for segment in batch.sequences)),
        **batch.columns_at(flat),  # type: ignore[arg-type]
    )


def _unknown_routing(batch: Batch, shape: tuple[int, ...]) -> Routing | None:
    """Experts of `[R, L]` tokens, all unknown yet; None for a batch without any."""
    known = next((segment.routing for segment in batch.sequences if segment.routing is not None), None)
    return None if known is None else np.full((*shape, *known.shape[1:]), -1, np.int16)
