"""Sequence packing: many sequences per row, rows distributed to ranks, a rank's rows split into micro-batches. Pure.

Sequences with a common context are a *prefix group*, which computes that context once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.types import Segment

Packed = tuple[int, ...]
"""Sequences that share a row, by their index in `lengths`."""


def row_tokens_of(row: Packed, lengths: Sequence[int]) -> int:
    """Count the tokens that a row holds."""
    return sum(lengths[index] for index in row)


def tokens_before_actions(segment: Segment) -> int:
    """Count the tokens before the first ACTION token."""
    return int(segment.action_mask.argmax())


def grouped_tokens(sequences: Sequence[Segment], members: Sequence[int]) -> int:
    """Count the tokens of a prefix group: the shared context once, and every member's own tokens."""
    shared = tokens_before_actions(sequences[members[0]])
    return shared + sum(len(sequences[n].token_ids) - shared for n in members)


def group_by_prefix(
    sequences: Sequence[Segment], chosen: Sequence[int], row_tokens: int, microbatch_tokens: int
) -> list[tuple[int, ...]]:
    """Group the `chosen` sequences with equal contexts, in order, as many as fit into `row_tokens`: rows of similar
    length waste little space, and can be distributed evenly. If a context alone fills a row, computing it again would
    cost more: then as many as fit into `microbatch_tokens`."""
    groups: dict[bytes, list[list[int]]] = {}
    filled: dict[bytes, int] = {}
    for n in chosen:
        segment = sequences[n]
        shared = tokens_before_actions(segment)
        own = len(segment.token_ids) - shared
        key = segment.token_ids[:shared].tobytes()
        alike = groups.setdefault(key, [])
        if not alike or filled[key] + own > (row_tokens if shared < row_tokens else microbatch_tokens):
            alike.append([])
            filled[key] = shared
        alike[-1].append(n)
        filled[key] += own
    return [tuple(members) for alike in groups.values() for members in alike]


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
