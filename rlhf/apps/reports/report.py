"""What a report says of a run: facts, alarms, curves, chosen episodes, recipe and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCurve:
    """A metric over the updates; `metric` is None for one of the user's own."""

    name: str
    points: Series
    metric: Metric | None

    @property
    def last(self) -> str:
        """The latest number, with its unit."""
        value = next((value for _, value in reversed(self.points) if value is not None), None)
        if value is None:
            return "no number"
        return self.metric.format(value) if self.metric else f"{value:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEpisode:
    """An episode of the last update, and why it was chosen; every text in it may come from a model."""

    why: str
    facts: Facts
    said: Sequence[tuple[str, str]]
    """Roles and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is reported, in the order of the report."""

    name: str
    facts: Facts
    alarms: Sequence[str]
    headlines: Sequence[MetricCurve]
    others: Sequence[MetricCurve]
    episodes: Sequence[ChosenEpisode]
    untold: Sequence[str]
    """Why episodes are left out."""
    provenance: Facts
    recipe: str
    code: Mapping[str, str]
    """The text of each module that the recipe names."""


def report_of(run: StoredRun) -> Report:
    """Read the contents of the report."""
    rows, untold = run.curve_rows, list[str]()
    entries = with_entries(name for row in rows for name in row if name not in ("update", "time"))
    curves = [MetricCurve(name=name, points=series(rows, name), metric=entry) for name, entry in entries]
    return Report(
        name=run.name,
        facts=[*run_facts(run)],
        alarms=[alarm.sentence for alarm in alarms(run.rows)],
        headlines=[curve for name in HEADLINES for curve in curves if curve.name == name],
        others=[curve for curve in curves if curve.name not in HEADLINES],
        episodes=chosen_episodes(run.folder, untold),
        untold=untold,
        provenance=tuple(recorded_provenance(run.folder).items()),
        recipe=run.recipe_text,
        code=run.code,
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


def chosen_episodes(folder: RunFolder, untold: list[str]) -> list[ChosenEpisode]:
    """Return the episodes of the last update with the highest, the middle and the lowest reward. Unreadable files are
    added to `untold`."""
    if not folder.episodes.is_dir():
        return []
    try:
        episodes = open_episodes(folder.path, untold.append)
        with explaining_sql():
            return [_chosen(why, row) for why, row in _ends_and_middle(episodes)]
    except UserError as error:
        untold.append(str(error))
        return []


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


def _chosen(why: str, row: Mapping[str, Any]) -> ChosenEpisode:
    facts = {
        "reward": reward_text(row),
        "task": row["task"],
        "sample": row["sample"],
        "status": row["status"],
        "sampled tokens": row["sampled_tokens"],
        "expected": row["answer"],
        "detail": row["reward_detail"],
    }
    return ChosenEpisode(
        why=why,
        facts=[(name, without_middle(str(fact))) for name, fact in facts.items() if fact is not None],
        said=[(role, without_middle(text)) for role, text in said_in(row)],
    )
