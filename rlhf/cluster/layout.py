"""How equal workers are dealt to nodes that have room for so many each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

Layout = Literal["fill", "pack", "spread"]
"""`fill`: node after node in their order; `pack`: on as few nodes as can be; `spread`: as evenly as the room allows."""


def workers_per_node(layout: Layout, rooms: Sequence[int], count: int) -> list[int]:
    """How many of `count` workers each node takes, at most its room, and no more in all than there is room for."""
    if layout == "spread":
        return _evenly(rooms, min(count, sum(rooms)))
    order = range(len(rooms)) if layout == "fill" else sorted(range(len(rooms)), key=lambda at: -rooms[at])
    taken, left = [0] * len(rooms), count
    for at in order:
        taken[at] = min(rooms[at], left)
        left -= taken[at]
    return taken


def _evenly(rooms: Sequence[int], count: int) -> list[int]:
    """Every node takes up to one level, the highest that `count` reaches, and the first ones that can take one more."""
    level = bisect_right(range(count + 1), count, key=lambda level: sum(min(room, level) for room in rooms)) - 1
    taken = [min(room, level) for room in rooms]
    left = count - sum(taken)
    for at, room in enumerate(rooms):
        if left and room > level:
            taken[at] += 1
            left -= 1
    return taken
