"""Measurements of a run: time spans, and metrics that are summed over parts before division."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

Attribute = str | int | float | bool | None
Sums = Mapping[str, tuple[float, float]]
"""Per metric a (sum, count), so that parts of a batch, ranks and micro-batches are summed with correct weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A timed activity: `start` in seconds since 1970, `seconds` by a monotonic clock."""

    name: str
    start: float
    seconds: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Attribute]:
        """The span as a line of `spans.jsonl`."""
        return {"name": self.name, "start": self.start, "seconds": round(self.seconds, 6), **self.attributes}


class Clock:
    """Collects spans."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.perf_counter) -> None:
        self._began_wall, self._began_steady, self._steady = wall(), steady(), steady
        self._spans: list[Span] = []

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[None]:
        """Record the duration of the block, even if it raises."""
        began = self._steady()
        try:
            yield
        finally:
            self._spans.append(
                Span(
                    name=name,
                    start=self._began_wall + began - self._began_steady,
                    seconds=self._steady() - began,
                    attributes=attributes,
                )
            )

    def add(self, name: str, seconds: float, **attributes: Attribute) -> None:
        """Record an activity of `seconds` that was timed elsewhere and ends now."""
        start = self._began_wall + self.elapsed_seconds - seconds
        self._spans.append(Span(name=name, start=start, seconds=seconds, attributes=attributes))

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the clock was made."""
        return self._steady() - self._began_steady

    def drain(self) -> list[Span]:
        """Return the spans that ended since the last call, in the order of their ends."""
        spans, self._spans = self._spans, []
        return spans


def busy_seconds(spans: Iterable[Span]) -> dict[str, float]:
    """Return for each name the seconds in which at least one of its spans ran: concurrent episodes count once."""
    intervals: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        intervals[span.name].append((span.start, span.start + span.seconds))
    return {name: _covered(ranges) for name, ranges in intervals.items()}


def reduce(parts: Iterable[Sums]) -> dict[str, float]:
    """Sum the parts and divide, in float64. Omit a metric with a count of zero."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for part in parts:
        for name, (total, count) in part.items():
            totals[name][0] += total
            totals[name][1] += count
    return {name: total / count for name, (total, count) in totals.items() if count}


def _covered(ranges: list[tuple[float, float]]) -> float:
    covered, reached = 0.0, float("-inf")
    for start, stop in sorted(ranges):
        covered += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return covered
