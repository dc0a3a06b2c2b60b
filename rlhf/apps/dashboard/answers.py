"""What the page asks for, as JSON: overviews, tables of episodes, and one episode token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rlhf.apps.dashboard.episode_index import EpisodeIndex
from rlhf.apps.dashboard.marks import token_marks
from rlhf.config import load_yaml
from rlhf.errors import UserError
from rlhf.runs.alarms import alarms
from rlhf.runs.episode_query import PART, ROW, Question
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.metric_catalogue import find_metric
from rlhf.runs.stored_run import StoredRun, read_metrics, read_run
from rlhf.untrusted_text import replace_surrogates

LISTED = (
    "update", "admitted_version", "evaluation_set", "task", "ordinal", "sample", "role", "outcome", "status", "reward",
    "reward_parts", "advantage", "sampled_tokens", "failure_kind", "left(answer, 200) AS answer",
    "left(response, 400) AS response",
)  # fmt: skip
"""Columns of the table of episodes."""
GROUP_KEY = ("ordinal", "admitted_version", "evaluation_set", "task")
SPREAD = (
    "max(update) AS update", "count(*) AS episodes", "min(reward) AS lowest", "avg(reward) AS mean",
    "max(reward) AS highest", "stddev_pop(reward) AS spread",
    f"list({{'part': {PART}, 'row': {ROW}}} ORDER BY sample) AS places",
)  # fmt: skip
"""Facts about a group."""
EXPLAINED = ("meaning", "unit", "low", "high", "remedy")
"""What the page says of a metric."""
COMPARED = "outcome NOT IN ('second_use', 'baseline')"
"""A group's own episodes: rows that repeat them, and that of its greedy baseline, are none of its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """Identifies an episode: its view, and there its group, sample, evaluated version and set."""

    view: str
    ordinal: int
    sample: int
    version: int
    evaluation_set: str | None = None


def card(name: str, folder: RunFolder) -> dict[str, Any]:
    """Return a run's entry in the list of runs; for a damaged run, why."""
    try:
        run = read_run(folder.path)
    except UserError as error:
        return {"name": name, "error": str(error)}
    last = run.rows[-1] if run.rows else {}
    return {
        "name": name,
        "updates": run.updates,
        "made": last.get("update", 0),
        "reward": last.get("reward/mean"),
        "outcome": run.outcome,
    }


def overview(run: StoredRun) -> dict[str, Any]:
    """Return the metrics by name, each with its values at `updates`, its meaning and its healthy range."""
    rows = run.curve_rows
    names = dict.fromkeys(name for row in rows for name in row if name not in ("update", "time"))
    words = {
        "name": run.name,
        "summary": run.summary,
        "outcome": run.outcome,
        "alarms": [{"sentence": alarm.sentence, "metric": alarm.metric} for alarm in alarms(run.rows)],
        "recipe": run.recipe_text,
        "code": run.code,
    }
    shown: dict[str, Any] = _finite(replace_surrogates(words))
    return shown | {
        "updates": run.updates,
        "update": [row["update"] for row in rows],
        "time": [row.get("time") for row in rows],
        "metrics": {
            replace_surrogates(name): {"values": [row.get(name) for row in rows]}
            | {key: vars(entry)[key] for key in EXPLAINED if (entry := find_metric(name))}
            for name in names
        },
    }


def timeline(folder: RunFolder, update: int | None) -> dict[str, Any]:
    """Return the spans that touch an update, the newest by default: it lasts from the end of the one before to its own
    end. Raises `UserError` for an update that the run has not made."""
    ends = {int(row["update"] or 0): row["time"] for row in read_metrics(folder.metrics)}
    made = max(ends, default=None) if update is None else update
    if made is None:
        return {"update": None, "updates": 0, "spans": []}
    if (stop := ends.get(made)) is None:
        raise UserError(f"there is no update {made} in {folder.path}")
    spans = list(read_jsonl(folder.spans)) if folder.spans.exists() else []
    start = ends.get(made - 1) or min((span["start"] for span in spans), default=stop)
    touching = [span for span in spans if span["start"] < stop and span["start"] + span["seconds"] > start]
    return {"update": made, "updates": max(ends), "start": start, "stop": stop, "spans": touching}


def episodes_answer(index: EpisodeIndex, view: str, question: Question) -> dict[str, Any]:
    """Return the matching episodes, and their total number."""
    found = index.find(view, question)
    return {"rows": [_finite(row) for row in index.rows(view, found.places, LISTED)], "total": found.total}


def groups_answer(index: EpisodeIndex, view: str, question: Question) -> list[dict[str, Any]]:
    """Return groups of the episodes that match, each with the spread of its rewards and with its own episodes."""
    where = f"({question.where}\n) AND {COMPARED}" if question.where else COMPARED
    groups = index.summed(view, SPREAD, GROUP_KEY, replace(question, where=where))
    places = [(place["part"], place["row"]) for group in groups for place in group.pop("places")]
    episodes = iter(index.rows(view, places, LISTED))
    return [
        {name: _finite(value) for name, value in group.items()}
        | {"rows": [_finite(row) for row in islice(episodes, group["episodes"])]}
        for group in groups
    ]


def episode_answer(index: EpisodeIndex, key: EpisodeKey, folder: RunFolder) -> dict[str, Any]:
    """Return one episode with the text of its tokens, and its siblings. Raises `UserError` if there is none."""
    group = f"ordinal = {key.ordinal} AND admitted_version = {key.version}"
    if key.evaluation_set:
        group += " AND evaluation_set = '{}'".format(key.evaluation_set.replace("'", "''"))
    siblings = index.rows(key.view, index.find(key.view, Question(where=group, order="sample")).places, LISTED)
    one = Question(where=f"{group} AND sample = {key.sample}", limit=1)
    if not (rows := index.rows(key.view, index.find(key.view, one).places)):
        raise UserError(f"there is no such episode: {asdict(key)}")
    return {
        "episode": _finite(rows[0]),
        "siblings": [_finite(row) for row in siblings],
        "marks": token_marks(rows[0], load_yaml(folder.recipe.read_text())["trainer"]),
        **token_texts(folder.tokenizer / "tokenizer.json", rows[0]["token_ids"] or ()),
    }


def token_texts(file: Path, token_ids: Sequence[int]) -> dict[str, Any]:
    """Return the text of each token, and whether it is a special one, by the tokenizer of the run; None without it."""
    if not file.is_file():
        return {"texts": None, "special": None}
    tokenizer = _tokenizer(file, file.stat().st_mtime_ns)
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    return {
        "texts": [tokenizer.decode([token], skip_special_tokens=False) for token in token_ids],
        "special": [token in special for token in token_ids],
    }


@cache
def _tokenizer(file: Path, changed: int) -> Tokenizer:
    return Tokenizer.from_file(str(file))


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by null, which JSON lacks."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case list():
            return [_finite(item) for item in value]
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
    return value
