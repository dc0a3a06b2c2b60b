"""Sequence packing: many sequences per row, rows distributed to ranks, a rank's rows split into micro-batches. Pure.

Sequences that begin alike are a *prefix group*, which computes that beginning once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlhf.trainer.arrays import Ints
from rlhf.types import Segment

Packed = tuple[int, ...]
"""Sequences that share a row, by their index in `lengths`."""


def row_tokens_of(row: Packed, lengths: Sequence[int]) -> int:
    """Count the tokens that a row holds."""
    return sum(lengths[index] for index in row)


class PrefixGroup(NamedTuple):
    """Sequences that begin alike: the first `shared[n]` tokens of `members[n]` are those of the first member, whose own
    `shared[0]` tokens are computed once for all. The numbers fall, so that no branch continues the positions of the one
    before it (`rlhf.models.long_attention.runs_of`)."""

    members: tuple[int, ...]
    shared: tuple[int, ...]

    def tokens(self, sequences: Sequence[Segment]) -> int:
        """Count the tokens: the shared beginning once, and every member's own."""
        return self.shared[0] + sum(len(sequences[n].token_ids) for n in self.members) - sum(self.shared)


def one_context(sequences: Sequence[Segment], members: Sequence[int]) -> PrefixGroup:
    """Return the group of sequences that have the context of the first of them."""
    return PrefixGroup(tuple(members), (tokens_before_actions(sequences[members[0]]),) * len(members))


def tokens_before_actions(segment: Segment) -> int:
    """Count the tokens before the first ACTION token."""
    return int(segment.action_mask.argmax())


def group_by_prefix(
    sequences: Sequence[Segment],
    chosen: Sequence[int],
    samples: Sequence[int] | Ints,
    row_tokens: int,
    microbatch_tokens: int,
) -> list[PrefixGroup]:
    """Group the `chosen` sequences with equal contexts, in order, as many as fit into `row_tokens`: rows of similar
    length waste little space, and can be distributed evenly. If a context alone fills a row, computing it again would
    cost more: then as many as fit into `microbatch_tokens`. Sequences of one of the `samples`, an agent's rewritten
    contexts, are one group if that saves more than the first context, which the sample may share with others."""
    groups: dict[bytes, list[list[int]]] = {}
    filled: dict[bytes, int] = {}
    of_sample: dict[int, list[int]] = {}
    for n in chosen:
        of_sample.setdefault(int(samples[n]), []).append(n)
    found: list[PrefixGroup] = []
    for own in of_sample.values():
        rewritten = _rewritten(sequences, own, microbatch_tokens)
        saved = sum(rewritten.shared[1:])
        if saved > tokens_before_actions(sequences[own[0]]):
            found.append(rewritten)
    grouped = {n for group in found for n in group.members}
    for n in (n for n in chosen if n not in grouped):
        segment = sequences[n]
        shared = tokens_before_actions(segment)
        own_tokens = len(segment.token_ids) - shared
        key = segment.content_ids[:shared].tobytes()
        alike = groups.setdefault(key, [])
        if not alike or filled[key] + own_tokens > (row_tokens if shared < row_tokens else microbatch_tokens):
            alike.append([])
            filled[key] = shared
        alike[-1].append(n)
        filled[key] += own_tokens
    return found + [one_context(sequences, members) for alike in groups.values() for members in alike]


def _rewritten(sequences: Sequence[Segment], own: Sequence[int], most_tokens: int) -> PrefixGroup:
    """Return the group of one sample's sequences whose first member has the longest context, with as many others as fit
    into `most_tokens`, those first that share most. A token of theirs that lies in that context is computed there."""
    trunk = max(own, key=lambda n: tokens_before_actions(sequences[n]))
    length = tokens_before_actions(sequences[trunk])
    others = sorted(((_common(sequences[n], sequences[trunk], length), n) for n in own if n != trunk), reverse=True)
    members, shared, filled = [trunk], [length], len(sequences[trunk].token_ids)
    for common, n in others:
        own_tokens = len(sequences[n].token_ids) - common
        if common and filled + own_tokens <= most_tokens:
            members.append(n)
            shared.append(common)
            filled += own_tokens
    return PrefixGroup(tuple(members), tuple(shared))


def _common(one: Segment, trunk: Segment, length: int) -> int:
    """Count the first tokens of one sequence that are the trunk's, at most `length`. Where experts were chosen for
    tokens, a sampled token keeps its own."""
    most = min(length, len(one.token_ids) if one.routing is None else tokens_before_actions(one))
    differs = np.flatnonzero(one.content_ids[:most] != trunk.content_ids[:most])
    return int(differs[0]) if len(differs) else most


def pack_rows(lengths: Sequence[int], row_tokens: int) -> list[Packed]:
    """Pack sequences into rows of at most `row_tokens`, longest first, each into the first row with room.

    A sequence longer than `row_tokens` gets its own row. Rows are returned longest first.
    """
    members: list[list[int]] = []
    filled: list[int] = []
    first_open = 0
    shortest = min(lengths, default=0)
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = (r for r in range(first_open, len(filled)) if filled[r] + lengths[index] <= row_tokens)
        row = next(fitting, len(filled))
        if row == len(filled):
            members.append([])
            filled.append(0)
        members[row].append(index)
        filled[row] += lengths[index]
        while first_open < len(filled) and filled[first_open] + shortest > row_tokens:
            first_open += 1
    return sorted(map(tuple, members), key=lambda row: -row_tokens_of(row, lengths))


def deal(rows: Sequence[Packed], lengths: Sequence[int], ranks: int) -> list[list[Packed]]:
    """Give every row to the rank with the fewest tokens so far, longest rows first."""
    shares: list[list[Packed]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for row in rows:
        rank = tokens.index(min(tokens))
        shares[rank].append(row)
        tokens[rank] += row_tokens_of(row, lengths)
    return shares


def cut_microbatches(rows: Sequence[Packed], lengths: Sequence[int], microbatch_tokens: int) -> list[list[Packed]]:
    """Split a rank's rows, longest first, into micro-batches of at most `microbatch_tokens` (padding included), at
    least one row each. No row is padded to more than twice its tokens."""
    parts: list[list[Packed]] = []
    for row in rows:
        longest = row_tokens_of(parts[-1][0], lengths) if parts else 0
        if 0 < longest < 2 * row_tokens_of(row, lengths) and longest * (len(parts[-1]) + 1) <= microbatch_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
