"""Formats a placement plan as a table: one line per worker, or one line per group of similar workers and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rlhf.cluster.resources import Placement, Plan

LONGEST_TABLE = 24
"""Largest number of workers for which each has its own line."""
WORDS = 2
"""Number of text columns, on the left; the others are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Consecutive workers of one role on consecutive nodes, `each` of them per node. `last_at` is the last node's index
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
    """Merge the plan's workers into as few shares as possible without losing information."""
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
    gpus = f"{placed.gpus:g}" + (f" of {_role_of(placed.beside[0])}" if placed.beside else "")
    return f"{placed.cpus:g}", str(placed.threads), gpus if placed.gpus else "-"


def _role_of(worker: str) -> str:
    return worker.rpartition("-")[0]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(_padded(row, widths)) for row in rows)


def _padded(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if at < WORDS else cell.rjust(width)
