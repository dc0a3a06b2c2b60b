"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlhf.http.untrusted_text import escape_controls, escape_to_line
from rlhf.runs.live import curve
from rlhf.runs.report import ChosenEpisode, Facts, MetricCurve, Report

CURVE_WIDTH = 24
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#|!&~]")


def markdown_report(report: Report) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report)) + "\n"


def inline(text: str) -> str:
    """Return text of any origin on one line, without effect on what surrounds it."""
    return _MARKUP.sub(lambda found: f"\\{found[0]}", escape_to_line(text))


def fenced(text: str, language: str = "text") -> str:
    """Return text of any origin as a block, with a fence that is longer than any in it."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{escape_controls(text)}\n{fence}"


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
