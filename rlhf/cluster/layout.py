"""Distributes equal workers over nodes, given how many fit on each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

Layout = Literal["fill", "pack", "spread"]
"""`fill`: node after node in order; `pack`: on as few nodes as possible; `spread`: as evenly as capacity allows."""


def workers_per_node(layout: Layout, rooms: Sequence[int], count: int) -> list[int]:
    """Number of the `count` workers that each node takes. No node takes more than fits; if all are full, the rest is
    left out."""
    if layout == "spread":
        return _evenly(rooms, min(count, sum(rooms)))
    order = range(len(rooms)) if layout == "fill" else sorted(range(len(rooms)), key=lambda at: -rooms[at])
    taken, left = [0] * len(rooms), count
    for at in order:
        taken[at] = min(rooms[at], left)
        left -= taken[at]
    return taken


def _evenly(rooms: Sequence[int], count: int) -> list[int]:
    """Every node takes workers up to one level, the highest that `count` reaches; the first nodes with room take one
    more."""
    level = bisect_right(range(count + 1), count, key=lambda level: sum(min(room, level) for room in rooms)) - 1
    taken = [min(room, level) for room in rooms]
    left = count - sum(taken)
    for at, room in enumerate(rooms):
        if left and room > level:
            taken[at] += 1
            left -= 1
    return taken
