"""The lines that a view shows of a run, from its stored metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from rlhf.data.config import HELD_OUT
from rlhf.runs.alarms import alarms, series
from rlhf.runs.live_view import curve
from rlhf.runs.metric_catalogue import find_metric
from rlhf.runs.stored_run import MetricRow
from rlhf.runs.view import EvaluationLine, UpdateLine
from rlhf.untrusted_text import escape_to_line

PLAYED = "groups/failed"
"""A metric of every update whose episodes engines played."""
LESSONS = ("sft/nll", "pairs/loss", "pairs/accuracy", "reward/mean", "policy/approx_kl")
"""What the other updates show."""
WATCHED = (
    "response/tokens_mean", "response/truncated", "reward/equal_groups", "policy/entropy", "policy/kl_reference",
    "policy/logprob_difference", "optimizer/grad_norm", "critic/explained_variance",
)  # fmt: skip
"""Metrics whose curves are shown."""
CURVE_WIDTH = 32


def update_lines(rows: Sequence[MetricRow], updates: int) -> Iterator[UpdateLine]:
    """Return the line of every update of a run with `updates` updates."""
    lost = 0.0
    for row in rows:
        lost += row.get("samples/lost") or 0.0
        seconds = row.get("seconds/update") or 0.0
        tokens = row.get("tokens/trained") or row.get("tokens/computed") or 0.0
        clipped = [row.get("policy/clip_fraction_low"), row.get("policy/clip_fraction_high")]
        times = {
            name.removeprefix("seconds/"): value or 0.0 for name, value in row.items() if name.startswith("seconds/")
        }
        yield UpdateLine(
            update=int(row["update"] or 0),
            updates=updates,
            reward=row.get("reward/mean"),
            lesson={} if PLAYED in row else {name: row[name] or 0.0 for name in LESSONS if row.get(name) is not None},
            eval_reward=row.get("eval/reward"),
            staleness=row.get("staleness/mean") or 0.0,
            seconds=seconds,
            phase_seconds={name: value for name, value in times.items() if name != "update"},
            tokens_per_second=tokens / seconds if seconds else 0.0,
            eta_seconds=seconds_left(rows[0], row, updates),
            learning_rate=row.get("optimizer/learning_rate"),
            kl=row.get("policy/approx_kl"),
            kl_reference=row.get("policy/kl_reference"),
            clip_fraction=sum(value or 0.0 for value in clipped) if clipped != [None, None] else None,
            failed=int(row.get("groups/failed") or 0),
            lost=int(lost),
            filtered=int(row.get("groups/filtered") or 0),
        )


def seconds_left(first: MetricRow, last: MetricRow, updates: int) -> float | None:
    """Estimate the seconds to the end from the mean time of an update; None after the first."""
    done, spent = (last["update"] or 0) - (first["update"] or 0), (last.get("time") or 0) - (first.get("time") or 0)
    return spent / done * (updates - (last["update"] or 0)) if done else None


def evaluation_lines(row: MetricRow) -> list[EvaluationLine]:
    """Return the line of every set that was evaluated after this update."""
    sets: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in row.items():
        one, _, metric = name.removeprefix("eval/").rpartition("/")
        if name.startswith("eval/") and one and value is not None:
            sets[one][metric] = value
    lines = []
    for name, metrics in sets.items():
        reward = next((value for metric, value in metrics.items() if metric.startswith("avg@")), None)
        lines.append(evaluation_line(int(row["update"] or 0), name, reward, metrics))
    return lines


def evaluation_line(
    update: int, name: str, reward: float | None, metrics: Mapping[str, float], problems: int | None = None
) -> EvaluationLine:
    """Return the display of one set: its reward and the metrics that the recipe lists, or all metrics of preference
    pairs."""
    shown = {
        metric: value for metric, value in metrics.items() if reward is None or metric.startswith(("pass@", "maj@"))
    }
    name = "" if name == HELD_OUT else name
    return EvaluationLine(update=update, name=name, reward=reward, problems=problems, metrics=shown)


def watched_rows(rows: Sequence[MetricRow]) -> list[tuple[str, Text]]:
    """Return the latest value and the curve of every watched metric, and the alarms."""
    found = []
    for name in WATCHED:
        entry = find_metric(name)
        values = [value for _, value in series(rows, name) if value is not None]
        if entry and values:
            style = "bold" if entry.is_healthy(values[-1]) else "bold red"
            text = Text.assemble((f"{entry.format(values[-1]):<14}", style), (curve(values, CURVE_WIDTH), "cyan"))
            found.append((name, text))
    return found + [("look at", Text(escape_to_line(alarm.sentence), "bold red")) for alarm in alarms(rows)]
