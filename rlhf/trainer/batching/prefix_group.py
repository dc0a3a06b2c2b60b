"""Prefix sharing: sequences with a common prefix are computed together, so a group's prompt is computed only once.

A prefix group is laid out as its shared tokens, followed by one branch per sequence. Positions of a branch continue
from the shared tokens', from which the attention derives its mask: see `rlhf.models.blocks`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf.types import Routing

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSequence:
    """One context to compute on: `token_ids` `int32 [T]`, the positions of its ACTION tokens `int64 [A]`, the `place`
    of the first of them in the flat arrays of the batch, and the experts of its tokens `[T, layers, k]`, if known."""

    token_ids: NDArray[np.int32]
    actions: Ints
    place: int
    routing: Routing | None = None

    @property
    def context(self) -> NDArray[np.int32]:
        """The tokens before the first ACTION token."""
        return self.token_ids[: self.actions[0]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixGroup:
    """Sequences with the same context of `shared` tokens; at least one sequence."""

    sequences: tuple[TokenSequence, ...]

    @property
    def shared(self) -> int:
        return len(self.sequences[0].context)

    @property
    def tokens(self) -> int:
        return self.shared + sum(len(sequence.token_ids) - self.shared for sequence in self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A prefix group's tokens in a row: `token_ids`, `position_ids` `int32 [T]` and `routing`. Over its ACTION tokens,
    `int64 [A]`: `targets` their index in the row, `sources` the index of the token before each in its sequence, and
    `places`. Over its sequences, `int64 [S]`: `sizes` their ACTION tokens and `ends` the index of their last token."""

    token_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    sources: Ints
    targets: Ints
    places: Ints
    sizes: Ints
    ends: Ints
    routing: Routing | None = None


def group_by_prefix(sequences: Sequence[TokenSequence], row_tokens: int, microbatch_tokens: int) -> list[PrefixGroup]:
    """Group sequences with equal contexts, in order, as many as fit into `row_tokens`: rows of similar length waste
    little space, and can be distributed evenly. Where a context alone fills a row, computing it again costs more than
    that: then as many as fit into `microbatch_tokens`."""
    found: dict[bytes, list[list[TokenSequence]]] = {}
    for sequence in sequences:
        alike = found.setdefault(sequence.context.tobytes(), [[]])
        most = row_tokens if len(sequence.context) < row_tokens else microbatch_tokens
        if alike[-1] and PrefixGroup(sequences=(*alike[-1], sequence)).tokens > most:
            alike.append([])
        alike[-1].append(sequence)
    return [PrefixGroup(sequences=tuple(members)) for alike in found.values() for members in alike]


def laid_out(prefix_group: PrefixGroup) -> Layout:
    """The shared tokens once, then each sequence's own tokens."""
    shared, stop = prefix_group.shared, prefix_group.shared
    token_ids, position_ids = [prefix_group.sequences[0].context], [np.arange(shared)]
    sources, targets, places, ends = [], [], [], []
    for sequence in prefix_group.sequences:
        shift = stop - shared
        token_ids.append(sequence.token_ids[shared:])
        position_ids.append(np.arange(shared, len(sequence.token_ids)))
        targets.append(sequence.actions + shift)
        sources.append(np.where(sequence.actions == shared, shared, sequence.actions + shift) - 1)
        places.append(sequence.place + np.arange(len(sequence.actions)))
        stop += len(sequence.token_ids) - shared
        ends.append(stop - 1)
    return Layout(
        token_ids=np.concatenate(token_ids).astype(np.int32),
        position_ids=np.concatenate(position_ids).astype(np.int32),
        sources=np.concatenate(sources),
        targets=np.concatenate(targets),
        places=np.concatenate(places),
        sizes=np.array([len(sequence.actions) for sequence in prefix_group.sequences], np.int64),
        ends=np.array(ends, np.int64),
        routing=_routing(prefix_group),
    )


def _routing(prefix_group: PrefixGroup) -> Routing | None:
    """The experts of a prefix group's tokens, in the order of its layout: those of the shared ones as the first
    sequence has them."""
    first, shared = prefix_group.sequences[0].routing, prefix_group.shared
    if first is None:
        return None
    own = [sequence.routing[shared:] for sequence in prefix_group.sequences if sequence.routing is not None]
    routing: Routing = np.concatenate([first[:shared], *own])
    return routing
