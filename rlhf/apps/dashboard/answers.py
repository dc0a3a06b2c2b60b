"""What the page asks for, as JSON: overviews, tables of episodes, and one episode token by token."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rlhf.apps.dashboard.episode_index import EpisodeIndex, EpisodePlace
from rlhf.apps.dashboard.marks import token_marks
from rlhf.apps.reports.episode_text import played_by, why_ended
from rlhf.config import load_yaml
from rlhf.errors import UserError
from rlhf.runs.alarms import alarms, series
from rlhf.runs.episode_query import PART, ROW, Question
from rlhf.runs.folder import IMAGES, RunFolder
from rlhf.runs.image_files import KINDS, image_file
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.metric_catalogue import find_metric
from rlhf.runs.overview import seconds_left
from rlhf.runs.payoff import elo_ratings, win_rate
from rlhf.runs.stored_run import StoredRun, read_metrics, read_run
from rlhf.trainer.league import newest_results
from rlhf.untrusted_text import replace_surrogates

LISTED = (
    "update", "admitted_version", "evaluation_set", "task", "ordinal", "sample", "role", "policy", "outcome", "status",
    "reward", "reward_parts", "advantage", "sampled_tokens", "failure_kind", "left(answer, 200) AS answer",
    "left(response, 400) AS response",
    "left(coalesce(prompt[-1].content, list_filter(conversation, lambda said: said.role = 'user')[1].content), 400)"
    " AS question",
)  # fmt: skip
"""Columns of the table of episodes."""
OF_THE_END = ("turns", "environment_seconds", "generate_seconds")
"""Further columns that say why an episode ended."""
HELD_OUT = re.compile(r"eval/(reward|.*/(avg@\d+|accuracy|nll))")
LESSONS = ("reward/mean", "pairs/accuracy", "sft/nll")
"""What is learnt, by the kind of the run."""
DRAWN = 60
"""Points of a small curve."""
GROUP_KEY = ("ordinal", "admitted_version", "evaluation_set", "task")
SPREAD = (
    "max(update) AS update", "count(*) AS episodes", "min(reward) AS lowest", "avg(reward) AS mean",
    "max(reward) AS highest", "stddev_pop(reward) AS spread",
    f"list({{'part': {PART}, 'row': {ROW}}} ORDER BY sample) AS places",
)  # fmt: skip
"""Facts about a group."""
PLAYERS = ("policy", "role")
"""Columns that say whose turns an episode is."""
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
    rows, curves = run.rows, run.curve_rows
    first, last = (rows[0], rows[-1]) if rows else ({}, {})
    names = dict.fromkeys(name for row in curves for name in row)
    held_out = next(iter(sorted(filter(HELD_OUT.fullmatch, names), key="eval/reward".__ne__)), "")
    evaluated = [value for _, value in series(curves, held_out) if value is not None]
    lesson = next((one for one in LESSONS if one in names), "")
    learnt = [value for _, value in series(rows, lesson)]
    curve = learnt[:: max(1, len(learnt) // DRAWN)]
    began = (first["time"] or 0) - (first.get("seconds/update") or 0) if first else folder.recipe.stat().st_mtime
    ended = None if run.writing else last.get("time") or began
    return {
        "name": name,
        "updates": run.updates,
        "made": last.get("update", 0),
        "outcome": run.outcome,
        "writing": run.writing,
        "model": model_name(run.values.get("model") or {}),
        "algorithm": algorithm_name(run.values),
        "held_out": {"metric": held_out, "start": evaluated[0], "end": evaluated[-1]} if evaluated else None,
        "lesson": {"metric": lesson, "end": learnt[-1], "curve": curve} if learnt else None,
        "began": began,
        "ended": ended,
        "left": seconds_left(first, last, run.updates) if rows and run.writing else None,
    }


def model_name(model: Mapping[str, Any]) -> str:
    """Return a model's name in two or three words."""
    shape = model.get("tiny") or {}
    name = "/".join(str(model["path"]).split("/")[-2:]) if model.get("path") else f"tiny {shape.get('architecture')}"
    return name + (" + LoRA" if model.get("lora") else "")


def algorithm_name(recipe: Mapping[str, Any]) -> str:
    """Return what a recipe trains with, in one word."""
    kind, trainer = recipe.get("kind", "rl"), recipe["trainer"]
    if kind == "preference":
        return str(trainer["preference"]["loss"])
    estimator = (trainer.get("advantage") or {}).get("estimator", "")
    own = trainer.get("algorithm") or {"group_relative": "grpo"}.get(estimator, estimator)
    return str(own if kind in ("rl", "offline") else kind).replace("_", " ")


def overview(run: StoredRun) -> dict[str, Any]:
    """Return the metrics by name, each with its values at `updates`, its meaning and its healthy range."""
    rows = run.curve_rows
    names = dict.fromkeys(name for row in rows for name in row if name not in ("update", "time"))
    words = {
        "name": run.name,
        "outcome": run.outcome,
        "alarms": [{"sentence": alarm.sentence, "metric": alarm.metric} for alarm in alarms(run.rows)],
        "recipe": run.recipe_text,
        "code": run.code,
    }
    shown: dict[str, Any] = _finite(replace_surrogates(words))
    return shown | {
        "updates": run.updates,
        "policies": list(run.values.get("policies") or {}),
        "league": league_standing(run.folder),
        "update": [row["update"] for row in rows],
        "time": [row.get("time") for row in rows],
        "metrics": {
            replace_surrogates(name): {"values": [row.get(name) for row in rows]}
            | {key: vars(entry)[key] for key in EXPLAINED if (entry := find_metric(name))}
            for name in names
        },
    }


def league_standing(folder: RunFolder) -> dict[str, Any] | None:
    """Return the players of a league at its newest checkpoint, the best first, with Elo ratings, and the win rate of
    each (row) against each; None without a league."""
    if (results := newest_results(folder.checkpoints)) is None:
        return None
    ratings = elo_ratings(results)
    players = sorted(ratings, key=lambda player: -ratings[player])
    rates = [[win_rate(results, one, other) for other in players] for one in players]
    return {"players": players, "elo": [ratings[player] for player in players], "rates": rates}


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


def episodes_answer(index: EpisodeIndex, view: str, question: Question, folder: RunFolder) -> dict[str, Any]:
    """Return the matching episodes, and their total number."""
    found = index.find(view, question)
    return {"rows": with_ends(index, view, found.places, folder), "total": found.total}


def with_ends(
    index: EpisodeIndex, view: str, places: Sequence[EpisodePlace], folder: RunFolder
) -> list[dict[str, Any]]:
    """Return the entries of episodes in a table, each with why it ended."""
    settings_of = played_by(folder.path)
    rows = index.rows(view, places, (*LISTED, *OF_THE_END))
    return [
        {name: value for name, value in _finite(row).items() if name not in OF_THE_END}
        | {"ended": why_ended(row, settings_of(row))}
        for row in rows
    ]


def players_answer(index: EpisodeIndex, view: str, folder: RunFolder) -> dict[str, list[str]]:
    """Return the policies and the roles that have episodes, in a run with several policies; nothing in another."""
    if not load_yaml(folder.recipe.read_text()).get("policies"):
        return {}
    found = index.summed(view, (), PLAYERS, Question())
    return {name: sorted({row[name] for row in found if row[name]}) for name in PLAYERS}


def groups_answer(index: EpisodeIndex, view: str, question: Question, folder: RunFolder) -> list[dict[str, Any]]:
    """Return groups of the episodes that match, each with the spread of its rewards and with its own episodes."""
    where = f"({question.where}\n) AND {COMPARED}" if question.where else COMPARED
    groups = index.summed(view, SPREAD, GROUP_KEY, replace(question, where=where))
    places = [(place["part"], place["row"]) for group in groups for place in group.pop("places")]
    episodes = iter(with_ends(index, view, places, folder))
    return [
        {name: _finite(value) for name, value in group.items()} | {"rows": list(islice(episodes, group["episodes"]))}
        for group in groups
    ]


def episode_answer(index: EpisodeIndex, key: EpisodeKey, folder: RunFolder) -> dict[str, Any]:
    """Return one episode with the text of its tokens, and its siblings. Raises `UserError` if there is none."""
    group = f"ordinal = {key.ordinal} AND admitted_version = {key.version}"
    if key.evaluation_set:
        group += " AND evaluation_set = '{}'".format(key.evaluation_set.replace("'", "''"))
    places = index.find(key.view, Question(where=group, order="sample")).places
    one = Question(where=f"{group} AND sample = {key.sample}", limit=1)
    if not (rows := index.rows(key.view, index.find(key.view, one).places)):
        raise UserError(f"there is no such episode: {asdict(key)}")
    return {
        "episode": _finite(rows[0]) | {"ended": why_ended(rows[0], played_by(folder.path)(rows[0]))},
        "siblings": with_ends(index, key.view, places, folder),
        "marks": token_marks(rows[0], load_yaml(folder.recipe.read_text())["trainer"]),
        **token_texts(folder.tokenizer / "tokenizer.json", rows[0]["token_ids"] or ()),
    }


def image_answer(sha256: str, folder: RunFolder) -> tuple[Path, str]:
    """Return the file and the media type of an image of a run's episodes. Raises `UserError` if there is none."""
    if (file := image_file(folder.path / IMAGES, sha256)) is None:
        raise UserError(f"there is no image {sha256!r:.100} in this run")
    return file, KINDS[file.suffix[1:]][1]


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
