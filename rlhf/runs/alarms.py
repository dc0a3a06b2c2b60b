"""What is wrong with a run, as sentences: its metrics against the healthy ranges of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from rlhf.runs.metric_catalogue import Metric, with_entries
from rlhf.runs.stored_run import MetricRow

PATIENCE = 3
"""Consecutive updates for which a value must be outside its range, or missing: a single update is often odd."""
Series = Sequence[tuple[int, float | None]]
"""The updates that measured a metric, with its values; None for NaN and infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A metric is not healthy since update `since`."""

    metric: str
    since: int
    what: str
    """For instance: engine and learner differ by 0.02 nats."""

    @property
    def sentence(self) -> str:
        return f"{self.what} since update {self.since}"


def alarms(rows: Sequence[MetricRow]) -> list[Alarm]:
    """Return the problems at the last of these updates, in the order of the catalogue."""
    entries = with_entries(name for row in rows for name in row)
    return [alarm for name, entry in entries for alarm in _of_metric(name, entry, rows)]


def series(rows: Sequence[MetricRow], name: str) -> Series:
    """Return the values of a metric."""
    return [(int(row["update"] or 0), row[name]) for row in rows if name in row]


def _of_metric(name: str, entry: Metric | None, rows: Sequence[MetricRow]) -> Iterator[Alarm]:
    """Report a metric that is not a number, that every update had until now, or that is outside its range."""
    values = series(rows, name)
    if since := _last_updates(values, lambda value: value is None):
        yield Alarm(metric=name, since=since[0], what=f"{name} is not a number")
    if entry is None:
        return
    there, gone = len(values), len(rows) - len(values)
    if not entry.sometimes and gone >= PATIENCE and all(name in row for row in rows[:there]):
        yield Alarm(metric=name, since=int(rows[there]["update"] or 0), what=f"{name} is missing")
    measured = [(update, value) for update, value in values if value is not None]
    if entry.counter:
        measured = [(update, value - before) for (_, before), (update, value) in pairwise([(0, 0.0), *measured])]
    since = _last_updates(measured, lambda value: value is not None and not entry.is_healthy(value))
    if entry.alarm and len(since) >= (1 if since and measured[-1][1] == entry.at_once else PATIENCE):
        whose = f"policy {name.removesuffix(own)}: " if name.endswith(own := f"/{entry.name}") else ""
        yield Alarm(metric=name, since=since[0], what=whose + entry.alarm.format(value=entry.format(measured[-1][1])))


def _last_updates(values: Series, bad: Callable[[float | None], bool]) -> list[int]:
    """Return the last updates in a row whose values are bad, oldest first."""
    return [update for update, _ in takewhile(lambda one: bad(one[1]), reversed(values))][::-1]
