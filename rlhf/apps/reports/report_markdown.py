"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlhf.apps.reports.report import ChosenEpisode, Facts, MetricCurve, Report
from rlhf.runs.live import curve
from rlhf.runs.model_card import fenced, inline

CURVE_WIDTH = 24


def markdown_report(report: Report) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# {inline(report.name)}\n"
    yield from _table(report.facts)
    yield "\n## What to look at\n"
    yield from _list(report.alarms or ["No alarm."])
    yield "\n## Curves\n"
    yield "| metric | curve | last | healthy |\n|---|---|---|---|"
    yield from map(_curve, (*report.headlines, *report.others))
    if report.episodes or report.untold:
        yield "\n## Episodes of the last update"
        yield from map(_episode, report.episodes)
        yield from _list(report.untold)
    yield f"\n## Recipe\n\n{fenced(report.recipe, 'yaml')}"
    for name, code in report.code.items():
        yield f"\n## {inline(name)}.py\n\n{fenced(code, 'python')}"
    if report.provenance:
        yield "\n## Provenance\n"
        yield from _table(report.provenance)


def _curve(one: MetricCurve) -> str:
    bars = curve([value for _, value in one.points if value is not None], CURVE_WIDTH)
    healthy = one.metric.healthy if one.metric else ""
    return f"| {inline(one.name)} | {bars} | {one.last} | {healthy} |"


def _episode(chosen: ChosenEpisode) -> str:
    said = [f"**{inline(role)}**\n\n{fenced(words)}" for role, words in chosen.said]
    return "\n\n".join([f"\n### {inline(chosen.why)}", "\n".join(_table(chosen.facts)), *said])


def _table(facts: Facts) -> Iterator[str]:
    yield "| | |\n|---|---|"
    for name, value in facts:
        yield f"| {inline(name)} | {inline(value)} |"


def _list(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in sentences:
        yield f"- {inline(sentence)}"
