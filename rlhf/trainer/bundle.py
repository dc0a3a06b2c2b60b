"""Sequences that begin alike, computed together: the samples of a group share their prompt, and it is computed once.

A bundle is laid out as its shared tokens, then one branch a sequence. Positions of a branch go on from the shared
tokens', which is all that the attention needs to know: see `rlhf.models.blocks`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf.types import Routing

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strand:
    """One context to compute on: `token_ids` `int32 [T]`, the positions of its ACTION tokens `int64 [A]`, the `place`
    of the first of them in the flat arrays of the batch, and the experts of its tokens `[T, layers, k]`, if known."""

    token_ids: NDArray[np.int32]
    actions: Ints
    place: int
    routing: Routing | None = None

    @property
    def context(self) -> NDArray[np.int32]:
        """What precedes the first ACTION token."""
        return self.token_ids[: self.actions[0]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """Strands with the same context of `shared` tokens, at least one strand."""

    strands: tuple[Strand, ...]

    @property
    def shared(self) -> int:
        return len(self.strands[0].context)

    @property
    def tokens(self) -> int:
        return self.shared + sum(len(strand.token_ids) - self.shared for strand in self.strands)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A bundle's tokens in a row: `token_ids`, `position_ids` `int32 [T]` and `routing`. Over its ACTION tokens,
    `int64 [A]`: `targets` their index in the row, `sources` the index of the token before each in its sequence, and
    `places`. Over its strands, `int64 [S]`: `sizes` their ACTION tokens and `ends` the index of their last token."""

    token_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    sources: Ints
    targets: Ints
    places: Ints
    sizes: Ints
    ends: Ints
    routing: Routing | None = None


def bundled(strands: Sequence[Strand], row_tokens: int) -> list[Bundle]:
    """Strands with equal contexts together, in order, as many as fit into `row_tokens`: rows of about one length leave
    little room, and are dealt evenly."""
    found: dict[bytes, list[list[Strand]]] = {}
    for strand in strands:
        alike = found.setdefault(strand.context.tobytes(), [[]])
        if alike[-1] and Bundle(strands=(*alike[-1], strand)).tokens > row_tokens:
            alike.append([])
        alike[-1].append(strand)
    return [Bundle(strands=tuple(members)) for alike in found.values() for members in alike]


def laid_out(bundle: Bundle) -> Layout:
    """The shared tokens once, then each strand's own."""
    shared, stop = bundle.shared, bundle.shared
    token_ids, position_ids = [bundle.strands[0].context], [np.arange(shared)]
    sources, targets, places, ends = [], [], [], []
    for strand in bundle.strands:
        shift = stop - shared
        token_ids.append(strand.token_ids[shared:])
        position_ids.append(np.arange(shared, len(strand.token_ids)))
        targets.append(strand.actions + shift)
        sources.append(np.where(strand.actions == shared, shared, strand.actions + shift) - 1)
        places.append(strand.place + np.arange(len(strand.actions)))
        stop += len(strand.token_ids) - shared
        ends.append(stop - 1)
    return Layout(
        token_ids=np.concatenate(token_ids).astype(np.int32),
        position_ids=np.concatenate(position_ids).astype(np.int32),
        sources=np.concatenate(sources),
        targets=np.concatenate(targets),
        places=np.concatenate(places),
        sizes=np.array([len(strand.actions) for strand in bundle.strands], np.int64),
        ends=np.array(ends, np.int64),
        routing=_routing(bundle),
    )


def _routing(bundle: Bundle) -> Routing | None:
    """The experts of a bundle's tokens, in the order of its layout: those of the shared ones as the first strand has
    them."""
    first, shared = bundle.strands[0].routing, bundle.shared
    if first is None:
        return None
    own = [strand.routing[shared:] for strand in bundle.strands if strand.routing is not None]
    routing: Routing = np.concatenate([first[:shared], *own])
    return routing
