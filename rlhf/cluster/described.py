"""A plan as people read it: a line a worker, and where there are many, a line for workers and nodes that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rlhf.cluster.resources import Placement, Plan

LONGEST_TABLE = 24
"""Workers up to which each has a line of its own."""
WORDS = 2
"""Columns of words, on the left; the others are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Neighbours of one role, so many on each of some nodes that follow one another. `last_at` is the last node's place
    among all nodes."""

    first: Placement
    last: Placement
    each: int
    last_at: int


def describe(plan: Plan) -> str:
    """The plan as a table."""
    if len(plan.placements) <= LONGEST_TABLE:
        each = [(placed.worker, placed.node, *_amounts(placed)) for placed in plan.placements]
        return _table([("worker", "node", "cores", "threads", "GPUs"), *each])
    alike = [_cells(share) for share in _alike(plan)]
    return _table([("workers", "nodes", "on each", "cores", "threads", "GPUs"), *alike])


def _alike(plan: Plan) -> Iterator[Share]:
    """The plan's workers in as few shares as tell all."""
    at = {node: place for place, node in enumerate(plan.nodes)}
    open_share: Share | None = None
    for _, grouped in groupby(plan.placements, key=lambda placed: (placed.role, placed.node)):
        here = list(grouped)
        share = Share(first=here[0], last=here[-1], each=len(here), last_at=at[here[0].node])
        if open_share and _continues(open_share, share):
            share = Share(first=open_share.first, last=share.last, each=share.each, last_at=share.last_at)
        elif open_share:
            yield open_share
        open_share = share
    if open_share:
        yield open_share


def _continues(before: Share, share: Share) -> bool:
    same_role, next_node = before.first.role == share.first.role, before.last_at + 1 == share.last_at
    return same_role and next_node and before.each == share.each


def _cells(share: Share) -> tuple[str, ...]:
    first, last = share.first, share.last
    workers = first.worker if first == last else f"{first.worker}…{last.index}"
    nodes = first.node if first.node == last.node else f"{first.node}…{last.node}"
    return workers, nodes, str(share.each), *_amounts(first)


def _amounts(placed: Placement) -> tuple[str, ...]:
    return f"{placed.cpus:g}", str(placed.threads), f"{placed.gpus:g}" if placed.gpus else "-"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(_padded(row, widths)) for row in rows)


def _padded(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if at < WORDS else cell.rjust(width)
