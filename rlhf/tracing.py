"""Measurements of a run: time spans, traces over all its processes, and metrics that are summed over parts before
division.

A block is timed by `with span("train")`. Each block of code has a current span, which tasks and coroutines inherit, and
with it the clock that collects the spans. A trace is a tree of spans with one root, in OpenTelemetry's sense.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
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


class Clock:
    """Measures a run, and is the sink of its spans: it keeps them for `spans.jsonl`, and gives them to `export` where
    traces are exported. `shows` gets the name of every span that begins.

    `root` is the first span of the open trace; a block without a span of its own belongs to the trace that is open when
    it starts, and may end after it.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.perf_counter) -> None:
        self._began_wall, self._began_steady, self._steady = wall(), steady(), steady
        self._spans: list[Span] = []
        self.first_began: dict[str, float] = {}
        """When the first span of each name began."""
        self.export: SpanExport | None = None
        self.shows: Callable[[str], None] = lambda name: None
        self.root: SpanIds | None = None
        self._root = ("", 0.0, dict[str, Attribute]())

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the clock was made."""
        return self._steady() - self._began_steady

    def span(self, name: str, seconds: float, attributes: Mapping[str, Attribute]) -> Span:
        """Return a span of `seconds` that ends now."""
        start = self._began_wall + self.elapsed_seconds - seconds
        return Span(name=name, start=start, seconds=seconds, attributes=attributes)

    def keep(self, span: Span) -> None:
        self._spans.append(span)

    def drain(self) -> list[Span]:
        """Return the spans that ended since the last call, in the order of their ends."""
        spans, self._spans = self._spans, []
        return spans

    def begin_trace(self, name: str, **attributes: Attribute) -> None:
        """End the open trace, and open another, where traces are exported."""
        self.end_trace()
        if self.export:
            self.root, self._root = new_ids(), (name, self.elapsed_seconds, attributes)

    def end_trace(self) -> None:
        """End the open trace, if there is one."""
        if self.export and self.root:
            name, began, attributes = self._root
            self.export(self.span(name, self.elapsed_seconds - began, attributes), self.root, None, None)
        self.root = None


class CurrentSpan(NamedTuple):
    """The innermost span around a block of code; `ids` are None where only the root is around it."""

    clock: Clock
    ids: SpanIds | None = None


CURRENT: ContextVar[CurrentSpan | None] = ContextVar("current_span", default=None)
UNTIMED = nullcontext()


@contextmanager
def within(current: CurrentSpan | None) -> Iterator[None]:
    """Make a span the current one of the block."""
    token = CURRENT.set(current)
    try:
        yield
    finally:
        CURRENT.reset(token)


def span(name: str, *, detail: bool = False, **attributes: Attribute) -> AbstractContextManager[None]:
    """Time the block, even if it raises, as a child of the current span; without one, do nothing. A `detail` is traced
    alone: there are too many of them for `spans.jsonl`, and where nothing is traced a waiting one takes no memory."""
    current = CURRENT.get()
    parent = (current.ids or current.clock.root) if current and current.clock.export else None
    if current is None or (detail and parent is None):
        return UNTIMED
    return _timed(current.clock, parent, name, detail, attributes)


@contextmanager
def _timed(
    clock: Clock, parent: SpanIds | None, name: str, detail: bool, attributes: Mapping[str, Attribute]
) -> Iterator[None]:
    if not detail:
        clock.shows(name)
    ids, began = new_ids(parent) if parent else None, clock.elapsed_seconds
    clock.first_began.setdefault(name, began)
    try:
        with within(CurrentSpan(clock, ids)):
            yield
    finally:
        ended = clock.span(name, clock.elapsed_seconds - began, attributes)
        if not detail:
            clock.keep(ended)
        if clock.export and ids:
            clock.export(ended, ids, parent, None)


def record_span(name: str, seconds: float, **attributes: Attribute) -> None:
    """Keep an activity of `seconds` that was timed elsewhere and ends now."""
    if current := CURRENT.get():
        current.clock.keep(current.clock.span(name, seconds, attributes))


@contextmanager
def continued(name: str, traceparent: str) -> Iterator[None]:
    """Trace the block as a child of a client's span; do nothing where no traces are exported, or the header is none."""
    current, found = CURRENT.get(), TRACEPARENT.fullmatch(traceparent)
    if current is None or current.clock.export is None or found is None:
        yield
        return
    with within(CurrentSpan(current.clock, SpanIds(int(found[1], 16), int(found[2], 16)))), span(name, detail=True):
        yield


def trace_worker(process: str, name: str, start: float, seconds: float) -> None:
    """Trace what a worker has done, as a child of the current span; without one, do nothing."""
    current = CURRENT.get()
    if current and current.ids and current.clock.export:
        done = Span(name=name, start=start, seconds=seconds)
        current.clock.export(done, new_ids(current.ids), current.ids, process)


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
