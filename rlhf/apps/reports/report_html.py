"""A report as one self-contained HTML file, without scripts or network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from html import escape
from io import BytesIO
from math import nan

from rlhf.apps.reports.report import ChosenEpisode, Facts, MetricCurve, Report
from rlhf.runs.alarms import Series
from rlhf.untrusted_text import escape_controls, escape_to_line

STYLE = """
:root { color-scheme: light dark; --ink: #22262b; --quiet: #646c76; --paper: #fff; --panel: #f4f5f7; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --quiet: #9aa3ad; --paper: #14171a; --panel: #1f2327;
  --bad: #ff8a80; } }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.2; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .75rem; background: var(--panel); border-radius: .5rem; }
figcaption small { display: block; color: var(--quiet); }
img { width: 100%; }
.alarms li, .bad { color: var(--bad); font-weight: 600; }
table { border-collapse: collapse; }
th { text-align: left; font-weight: normal; color: var(--quiet); padding-right: 1.5rem; vertical-align: top; }
td { white-space: pre-wrap; }
pre { white-space: pre-wrap; margin: .25rem 0 1rem; padding: .75rem; background: var(--panel); border-radius: .5rem; }
summary { cursor: pointer; margin: 1rem 0; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing is fetched and no script runs, whatever a text holds."""
CURVE, BOUND, AXES = "#4a8fd8", "#d1495b", "#808890"
"""Colours that can be read on light and on dark paper."""


def html_report(report: Report) -> str:
    """Return the report as a page."""
    name = text(report.name)
    parts = [
        f"<h1>{name}</h1>",
        facts_table(report.facts),
        section("What to look at", listed(report.alarms) or "<p>No alarm.</p>"),
        section("Curves", figures(report.headlines)),
        folded(f"{len(report.others)} other metrics", figures(report.others)),
        section("Episodes of the last update", "".join(map(episode, report.episodes)) + listed(report.untold)),
        section("Recipe", folded("every value and its origin", f"<pre>{text(report.recipe)}</pre>")),
        section(
            "Code", "".join(folded(f"{name}.py", f"<pre>{text(code)}</pre>") for name, code in report.code.items())
        ),
        section("Provenance", facts_table(report.provenance)),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{name}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(filter(None, parts))
        + "\n</main></body>\n</html>\n"
    )


def text(value: str) -> str:
    """Return text of any origin as HTML that shows it: markup and invisible characters do nothing."""
    return escape(escape_controls(value))


def section(title: str, content: str) -> str:
    """Return a section, or nothing without content."""
    return f"<section><h2>{text(title)}</h2>{content}</section>" if content else ""


def folded(title: str, content: str) -> str:
    """Return content that opens by a click, or nothing."""
    return f"<details><summary>{text(title)}</summary>{content}</details>" if content else ""


def facts_table(facts: Facts) -> str:
    """Return names and values as a table, or nothing."""
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in facts)
    return f"<table>{rows}</table>" if rows else ""


def listed(sentences: Iterable[str]) -> str:
    """Return sentences as a list, or nothing."""
    items = "".join(f"<li>{text(escape_to_line(sentence))}</li>" for sentence in sentences)
    return f'<ul class="alarms">{items}</ul>' if items else ""


def figures(curves: Iterable[MetricCurve]) -> str:
    """Return the curves with their latest values and meanings, or nothing."""
    drawn = "".join(map(_figure, curves))
    return f'<div class="curves">{drawn}</div>' if drawn else ""


def episode(chosen: ChosenEpisode) -> str:
    """Return an episode: its facts and its messages."""
    said = "".join(f"<strong>{text(role)}</strong><pre>{text(words)}</pre>" for role, words in chosen.said)
    return f"<article><h3>{text(chosen.why)}</h3>{facts_table(chosen.facts)}{said}</article>"


def _figure(curve: MetricCurve) -> str:
    entry, value = curve.metric, curve.points[-1][1]
    ill = value is None or (entry is not None and not entry.is_healthy(value))
    healthy = f" Healthy: {entry.healthy}." if entry and entry.healthy else ""
    meaning = f"<small>{text(entry.plain_meaning)}.{text(healthy)}</small>" if entry else ""
    bounds = (entry.low, entry.high) if entry else (None, None)
    return (
        f"<figure><figcaption><strong>{text(curve.name)}</strong> "
        f'<span class="{"bad" if ill else "good"}">{text(curve.last)}</span>{meaning}</figcaption>'
        f'<img alt="{text(curve.name)}" src="data:image/png;base64,{_png(curve.points, bounds)}"></figure>'
    )


def _png(points: Series, bounds: Iterable[float | None]) -> str:
    """Draw a curve, with gaps where it has no number and the bounds that it crosses. Return the PNG in base64."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(4, 1.6), dpi=100)
    axes = figure.add_axes((0.14, 0.16, 0.84, 0.76))
    values = [nan if value is None else value for _, value in points]
    axes.plot([update for update, _ in points], values, color=CURVE, marker="." if len(points) < 50 else "")
    low, high = axes.get_ylim()
    for bound in bounds:
        if bound is not None and low < bound < high:
            axes.axhline(bound, color=BOUND, linestyle="--")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(colors=AXES, labelsize=8)
    for spine in axes.spines.values():
        spine.set_color(AXES)
    file = BytesIO()
    figure.savefig(file, format="png", transparent=True)
    return b64encode(file.getvalue()).decode()
