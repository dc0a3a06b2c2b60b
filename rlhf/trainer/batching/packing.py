"""Sequence packing: many sequences per row, rows distributed to ranks, a rank's rows split into micro-batches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Sequences (by index) that share a row, and the tokens they fill."""

    members: tuple[int, ...]
    tokens: int


def pack_rows(lengths: Sequence[int], row_tokens: int) -> list[Row]:
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
    rows = [Row(tuple(inside), tokens) for inside, tokens in zip(members, filled, strict=True)]
    return sorted(rows, key=lambda row: -row.tokens)


def deal(rows: Sequence[Row], ranks: int) -> list[list[Row]]:
    """Give every row to the rank with the fewest tokens so far, longest rows first."""
    shares: list[list[Row]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for row in rows:
        rank = tokens.index(min(tokens))
        shares[rank].append(row)
        tokens[rank] += row.tokens
    return shares


def cut_microbatches(rows: Sequence[Row], microbatch_tokens: int) -> list[list[Row]]:
    """Split a rank's rows, longest first, into micro-batches of at most `microbatch_tokens` (padding included), at
    least one row each."""
    parts: list[list[Row]] = []
    for row in rows:
        if parts and parts[-1][0].tokens * (len(parts[-1]) + 1) <= microbatch_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
