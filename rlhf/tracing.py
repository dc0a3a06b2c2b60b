"""Measurements of a run: time spans, traces over all its processes, and metrics that are summed over parts before
division.

A trace is a tree of spans with one root, in OpenTelemetry's sense. Each block of code has a current span, which tasks
and coroutines inherit. Without one nothing is traced.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Attribute = str | int | float | bool | None
Sums = Mapping[str, tuple[float, float]]
"""Per metric a (sum, count), so that parts of a batch, ranks and micro-batches are summed with correct weights."""
TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f][13579bdf](-.*)?")
"""The header of W3C Trace Context of a span that its process exports: version, trace, span, flags."""


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


class SpanIds(NamedTuple):
    """The trace of a span, and the span in it."""

    trace: int
    span: int


SpanExport = Callable[[Span, SpanIds, SpanIds | None, str | None], None]
"""Takes a span that has ended, its ids and its parent's, and the worker that it was in; None: this process."""


class Traces:
    """The traces of a run, one after another. `root` is the first span of the open trace; a block without a span of its
    own belongs to the trace that is open when it starts, and may end after it."""

    def __init__(self, export: SpanExport) -> None:
        self.export = export
        self.root: SpanIds | None = None
        self._span = Span(name="", start=0.0, seconds=0.0)

    def begin(self, name: str, **attributes: Attribute) -> None:
        """End the open trace, and open another."""
        self.end()
        self.root, self._span = new_ids(), Span(name=name, start=time.time(), seconds=0.0, attributes=attributes)

    def end(self) -> None:
        """End the open trace, if there is one."""
        if self.root is not None:
            self.export(replace(self._span, seconds=time.time() - self._span.start), self.root, None, None)
        self.root = None


class CurrentSpan(NamedTuple):
    """The innermost span around a block of code; `ids` are None where only the root is around it."""

    traces: Traces
    ids: SpanIds | None = None


CURRENT: ContextVar[CurrentSpan | None] = ContextVar("current_span", default=None)


@contextmanager
def within(current: CurrentSpan | None) -> Iterator[None]:
    """Make a span the current one of the block."""
    token = CURRENT.set(current)
    try:
        yield
    finally:
        CURRENT.reset(token)


@contextmanager
def traced(name: str, **attributes: Attribute) -> Iterator[None]:
    """Trace the block as a child of the current span; without one, do nothing."""
    current = CURRENT.get()
    parent = (current.ids or current.traces.root) if current else None
    if current is None or parent is None:
        yield
        return
    ids, start, began = new_ids(parent), time.time(), time.perf_counter()
    try:
        with within(CurrentSpan(current.traces, ids)):
            yield
    finally:
        seconds = time.perf_counter() - began
        current.traces.export(Span(name=name, start=start, seconds=seconds, attributes=attributes), ids, parent, None)


@contextmanager
def continued(name: str, traceparent: str) -> Iterator[None]:
    """Trace the block as a child of a client's span; do nothing where no traces are exported, or the header is none."""
    current, found = CURRENT.get(), TRACEPARENT.fullmatch(traceparent)
    if current is None or found is None:
        yield
        return
    with within(CurrentSpan(current.traces, SpanIds(int(found[1], 16), int(found[2], 16)))), traced(name):
        yield


def trace_worker(process: str, name: str, start: float, seconds: float) -> None:
    """Trace what a worker has done, as a child of the current span; without one, do nothing."""
    current = CURRENT.get()
    if current is not None and current.ids is not None:
        span = Span(name=name, start=start, seconds=seconds)
        current.traces.export(span, new_ids(current.ids), current.ids, process)


def trace_headers() -> dict[str, str]:
    """Return the header by which a server continues the current span; none without a span."""
    current = CURRENT.get()
    if current is None or current.ids is None:
        return {}
    return {"traceparent": f"00-{current.ids.trace:032x}-{current.ids.span:016x}-01"}


def new_ids(parent: SpanIds | None = None) -> SpanIds:
    """Return the ids of a new span, in the trace of its parent. A resumed run repeats its seeds, so they are not from
    these."""
    return SpanIds(parent.trace if parent else 1 + secrets.randbits(127), 1 + secrets.randbits(63))


class Clock:
    """Collects spans. A span is also traced, with its nesting."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.perf_counter) -> None:
        self._began_wall, self._began_steady, self._steady = wall(), steady(), steady
        self._spans: list[Span] = []

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[None]:
        """Record the duration of the block, even if it raises."""
        began = self._steady()
        try:
            with traced(name, **attributes):
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
