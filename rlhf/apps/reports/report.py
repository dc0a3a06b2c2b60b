"""A run as one self-contained HTML file, without scripts or network: facts, alarms, curves, chosen episodes, recipe and
provenance."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from io import BytesIO
from math import nan
from typing import Any

from duckdb import DuckDBPyConnection

from rlhf.apps.reports.episode_text import reward_text, said_in
from rlhf.errors import UserError
from rlhf.runs.alarms import Series, alarms, series
from rlhf.runs.episode_query import Question, ask, explaining_sql, open_episodes
from rlhf.runs.folder import RunFolder
from rlhf.runs.metric_catalogue import Metric, with_entries
from rlhf.runs.provenance import recorded_provenance
from rlhf.runs.stored_run import StoredRun
from rlhf.runs.view import duration
from rlhf.untrusted_text import escape_controls, escape_to_line

LONGEST_TEXT, END_OF_TEXT = 20_000, 5_000
"""Maximum characters shown of a text, and how many of them come from its end."""
HEADLINES = (
    "reward/mean", "eval/reward", "sft/nll", "pairs/accuracy", "policy/entropy", "policy/approx_kl",
    "policy/kl_reference", "response/tokens_mean", "response/truncated", "policy/clip_fraction_high",
    "policy/logprob_difference", "staleness/mean", "reward/equal_groups",
)  # fmt: skip
"""The curves that are shown first."""
COLUMNS = (
    "task", "sample", "reward", "reward_parts", "reward_detail", "status", "sampled_tokens", "prompt", "answer",
    "response", "conversation",
)  # fmt: skip
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


def html_report(run: StoredRun) -> str:
    """Return the report as a page."""
    rows, untold, name = run.curve_rows, list[str](), text(run.name)
    entries = with_entries(name for row in rows for name in row if name not in ("update", "time"))
    drawn = {name: figure(name, series(rows, name), entry) for name, entry in entries}
    headlines = [drawn.pop(name) for name in HEADLINES if name in drawn]
    code = (folded(f"{name}.py", f"<pre>{text(code)}</pre>") for name, code in run.code.items())
    parts = [
        f"<h1>{name}</h1>",
        facts_table(run_facts(run)),
        section("What to look at", listed(alarm.sentence for alarm in alarms(run.rows)) or "<p>No alarm.</p>"),
        section("Curves", curves(headlines)),
        folded(f"{len(drawn)} other metrics", curves(drawn.values())),
        section("Episodes of the last update", chosen_episodes(run.folder, untold) + listed(untold)),
        section("Recipe", folded("every value and its origin", f"<pre>{text(run.recipe_text)}</pre>")),
        section("Code", "".join(code)),
        section("Provenance", facts_table(recorded_provenance(run.folder).items())),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{name}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(filter(None, parts))
        + "\n</main></body>\n</html>\n"
    )


def run_facts(run: StoredRun) -> Iterator[tuple[str, str]]:
    """Return what became of the run, and its evaluations at start and end."""
    done = int(run.rows[-1]["update"] or 0) if run.rows else 0
    summary = run.summary or {}
    yield "outcome", run.outcome
    yield "updates", f"{done} of {run.updates}"
    for restart in run.restarts:
        yield f"restart {restart.number}", restart.sentence
    if "samples" in summary:
        yield "trained episodes", f"{summary['samples']}"
    if seconds := summary.get("wall_seconds"):
        yield "time", duration(seconds)
    for name, one in (summary.get("evaluations") or {}).items():
        start, end = one.get("start") or {}, one.get("end") or {}
        for metric, value in start.items():
            after = f" → {end[metric]:.4g}" if metric in end else ""
            yield f"evaluation {name}: {metric}", f"{value:.4g}{after}"


def text(value: str) -> str:
    """Return text of any origin as HTML that shows it: markup and invisible characters do nothing."""
    return escape(escape_controls(value))


def section(title: str, content: str) -> str:
    """Return a section, or nothing without content."""
    return f"<section><h2>{text(title)}</h2>{content}</section>" if content else ""


def folded(title: str, content: str) -> str:
    """Return content that opens by a click, or nothing."""
    return f"<details><summary>{text(title)}</summary>{content}</details>" if content else ""


def facts_table(facts: Iterable[tuple[str, str]]) -> str:
    """Return names and values as a table, or nothing."""
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in facts)
    return f"<table>{rows}</table>" if rows else ""


def listed(sentences: Iterable[str]) -> str:
    """Return sentences as a list, or nothing."""
    items = "".join(f"<li>{text(escape_to_line(sentence))}</li>" for sentence in sentences)
    return f'<ul class="alarms">{items}</ul>' if items else ""


def curves(figures: Iterable[str]) -> str:
    """Return figures side by side, or nothing."""
    return f'<div class="curves">{all_figures}</div>' if (all_figures := "".join(figures)) else ""


def figure(name: str, points: Series, entry: Metric | None) -> str:
    """Return a metric's curve with its latest value and its meaning; one of the user's own has no `entry`."""
    value = points[-1][1]
    last = next((value for _, value in reversed(points) if value is not None), None)
    shown = "no number" if last is None else entry.format(last) if entry else f"{last:.4g}"
    ill = value is None or (entry is not None and not entry.is_healthy(value))
    healthy = f" Healthy: {entry.healthy}." if entry and entry.healthy else ""
    meaning = f"<small>{text(entry.plain_meaning)}.{text(healthy)}</small>" if entry else ""
    bounds = (entry.low, entry.high) if entry else (None, None)
    return (
        f"<figure><figcaption><strong>{text(name)}</strong> "
        f'<span class="{"bad" if ill else "good"}">{text(shown)}</span>{meaning}</figcaption>'
        f'<img alt="{text(name)}" src="data:image/png;base64,{_png(points, bounds)}"></figure>'
    )


def chosen_episodes(folder: RunFolder, untold: list[str]) -> str:
    """Return the episodes of the last update with the highest, the middle and the lowest reward: their facts and their
    messages. Unreadable files are added to `untold`."""
    if not folder.episodes.is_dir():
        return ""
    try:
        episodes = open_episodes(folder.path, untold.append)
        with explaining_sql():
            return "".join(_episode(why, row) for why, row in _ends_and_middle(episodes))
    except UserError as error:
        untold.append(str(error))
        return ""


def _episode(why: str, row: Mapping[str, Any]) -> str:
    facts = {
        "reward": reward_text(row),
        "task": row["task"],
        "sample": row["sample"],
        "status": row["status"],
        "sampled tokens": row["sampled_tokens"],
        "expected": row["answer"],
        "detail": row["reward_detail"],
    }
    table = facts_table((name, without_middle(str(fact))) for name, fact in facts.items() if fact is not None)
    said = (f"<strong>{text(role)}</strong><pre>{text(without_middle(words))}</pre>" for role, words in said_in(row))
    return f"<article><h3>{why}</h3>{table}{''.join(said)}</article>"


def _ends_and_middle(episodes: DuckDBPyConnection) -> Iterator[tuple[str, Mapping[str, Any]]]:
    trained = "outcome = 'trained' AND reward IS NOT NULL"
    newest = Question(where=trained, columns=("update",), order="update DESC", limit=1)
    updates = [update for (update,) in ask(episodes, "episodes", newest).fetchall()]
    last = f"{trained} AND update = {max(updates, default=0)}"  # a number, by which DuckDB leaves out other parts
    question = Question(where=last, columns=("ordinal", "sample"), order="reward DESC, ordinal, sample")
    found = ask(episodes, "episodes", question).fetchall()
    places = {len(found) // 2: "middle", len(found) - 1: "worst", 0: "best"} if found else {}  # of one it is the best
    chosen = {found[place]: why for place, why in places.items()}
    either = " OR ".join(f"(ordinal = {ordinal} AND sample = {sample})" for ordinal, sample in chosen) or "false"
    one_of = Question(where=f"{last} AND ({either})", columns=("ordinal", *COLUMNS), order=question.order)
    for row in ask(episodes, "episodes", one_of).to_arrow_table().to_pylist(maps_as_pydicts="lossy"):
        yield chosen[row["ordinal"], row["sample"]], row


def without_middle(text: str) -> str:
    """Leave out the middle of a very long text."""
    left_out = len(text) - LONGEST_TEXT
    if left_out <= 0:
        return text
    return f"{text[: LONGEST_TEXT - END_OF_TEXT]}\n… {left_out} characters left out …\n{text[-END_OF_TEXT:]}"


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
