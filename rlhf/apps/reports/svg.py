"""Curves as SVG, drawn by pure functions; a style sheet gives the colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from rlhf.runs.alarms import Series

WIDTH, HEIGHT, MARGIN = 320, 110, 14
MOST_POINTS = 300
"""A longer curve is drawn as means."""


def curve_svg(points: Series, label: str, low: float | None = None, high: float | None = None) -> str:
    """Draw a curve with its least and largest value and its updates; what is outside of `low` to `high` is marked."""
    drawn = thinned(points)
    values = [value for _, value in points if value is not None]
    if not values:
        return ""
    bottom, top = min(values), max(values)
    first, last = points[0][0], points[-1][0]

    def place(update: int, value: float) -> tuple[float, float]:
        across = (update - first) / (last - first) if last > first else 0.5
        up = (value - bottom) / (top - bottom) if top > bottom else 0.5
        return round(across * WIDTH, 1), round(HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN), 1)

    lines = (
        line([place(update, value) for update, value in part if value is not None])
        for measured, part in groupby(drawn, key=lambda point: point[1] is not None)
        if measured
    )
    bounds = [place(first, bound)[1] for bound in (high, low) if bound is not None and bottom < bound < top]
    return (
        f'<svg viewBox="-4 0 {WIDTH + 8} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        + "".join(f'<line class="bound" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>' for y in bounds)
        + "".join(lines)
        + "".join(words(bottom, top, first, last))
        + "</svg>"
    )


def line(places: Sequence[tuple[float, float]]) -> str:
    """Draw a line through the places, or a dot at a single one."""
    if len(places) == 1:
        return f'<circle class="curve" cx="{places[0][0]}" cy="{places[0][1]}" r="2"/>'
    return f'<polyline class="curve" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'


def words(bottom: float, top: float, first: int, last: int) -> Iterator[str]:
    """Write the bounds of the axes into the corners."""
    yield f'<text x="0" y="10">{top:.4g}</text>'
    if top > bottom:
        yield f'<text x="0" y="{HEIGHT - 2}">{bottom:.4g}</text>'
    yield f'<text x="{WIDTH}" y="{HEIGHT - 2}" text-anchor="end">update {f"{first} to " * (last > first)}{last}</text>'


def thinned(points: Series, most: int = MOST_POINTS) -> Series:
    """Return at most `most` points: means over equal numbers of updates, at the last of them."""
    if len(points) <= most:
        return points
    parts = [points[i * len(points) // most : (i + 1) * len(points) // most] for i in range(most)]
    return [(part[-1][0], _mean([value for _, value in part if value is not None])) for part in parts]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
