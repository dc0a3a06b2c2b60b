"""A run as recorded in its folder, perhaps while another process writes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlhf.config import load_yaml
from rlhf.errors import DataError, UserError
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import finite, read_jsonl
from rlhf.runs.owner import FOLDER as OWNER
from rlhf.runs.owner import began, machine, name, newest_fence, read_claim
from rlhf.runs.restarts import Restart, read_restarts

MetricRow = Mapping[str, float | None]
"""The metrics of an update, with its `update` and `time`; None for NaN and infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What a run folder holds so far."""

    folder: RunFolder
    name: str
    updates: int
    """The recipe's number of updates."""
    recipe: str
    """The resolved recipe as text."""
    values: Mapping[str, Any]
    """The same as values."""
    earlier_recipes: Sequence[tuple[int, str]] = ()
    """Those before a resume with another, in order, each with the last update that it made."""
    rows: tuple[MetricRow, ...]
    """By update."""
    writing: bool
    """Whether a process writes the folder, as far as this machine can see."""
    restarts: tuple[Restart, ...] = ()
    """Its automatic restarts, the oldest first."""
    summary: Mapping[str, Any] | None
    """None while the run is running, and after a kill."""

    @property
    def outcome(self) -> str:
        """The outcome of the run, or that it is running."""
        if self.summary is not None:
            return str(self.summary.get("outcome"))
        return "goes on" if self.writing else "its process ended without a summary"

    def recipes(self, version: float = math.inf) -> list[tuple[float, str]]:
        """Return the recipes that made the updates up to `version`, each with the last of these."""
        updates = [(min(last, version), text) for last, text in (*self.earlier_recipes, (math.inf, self.recipe))]
        begin = [0.0, *(last for last, _ in updates)]
        return [one for before, one in zip(begin, updates, strict=False) if before < one[0]] or updates[:1]

    @property
    def recipe_text(self) -> str:
        """All recipes of the run, the newest last; each before it with a comment that says its updates."""
        return "".join(f"# updates up to {last}:\n{text}\n" for last, text in self.earlier_recipes) + self.recipe

    @property
    def code(self) -> dict[str, str]:
        """The modules that the recipe names, as the run began with them."""
        return {file.stem: file.read_text(errors="replace") for file in sorted(self.folder.code.glob("*.py"))}

    @property
    def curve_rows(self) -> tuple[MetricRow, ...]:
        """The rows, and before them the evaluations of the start, which the summary has."""
        summary = self.summary or {}
        sets = (summary.get("evaluations") or {}).items()
        start = {f"eval/{name}/{metric}": value for name, one in sets for metric, value in (one["start"] or {}).items()}
        if not start or not self.rows:
            return self.rows
        if (reward := summary.get("eval_reward_start")) is not None:
            start["eval/reward"] = reward
        began = (self.rows[0].get("time") or 0.0) - (self.rows[0].get("seconds/update") or 1.0)
        return ({"update": 0.0, "time": began, **start}, *self.rows)


def read_run(path: Path) -> StoredRun:
    """Read recipe, metrics and summary of a run folder. Raises `UserError` for another folder, and `DataError` for a
    damaged file."""
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        raise UserError(
            f"{path} is not a run folder: {'it has no recipe.yaml' if path.exists() else 'it does not exist'}"
        )
    try:
        text = folder.recipe.read_text()
        recipe = load_yaml(text)
        title, updates = str(recipe["name"]), int(recipe["trainer"]["updates"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        raise DataError(f"{folder.recipe} is not the recipe of a run") from None
    except OSError as error:
        raise UserError(f"{folder.recipe} cannot be read ({error.strerror})") from None
    return _with_records(folder, title, updates, text, recipe)


def read_again(run: StoredRun) -> StoredRun:
    """Reread metrics and summary. Raises as `read_run`, also once the folder is gone."""
    if not run.folder.recipe.is_file():
        raise UserError(f"{run.folder.path} was moved or deleted")
    return _with_records(run.folder, run.name, run.updates, run.recipe, run.values)


def read_metrics(path: Path) -> tuple[MetricRow, ...]:
    """Read the whole lines of `metrics.jsonl`, by update; nothing if there is no such file. Raises `DataError` that
    names the damaged line."""
    rows: dict[int, dict[str, float | None]] = {}
    try:
        for number, row in enumerate(read_jsonl(path), 1):
            if any(isinstance(value, str | list | dict) for value in row.values()) or row.get("update") is None:
                raise DataError(f"{path}: line {number} does not hold the metrics of an update")
            numbers = {key: None if value is None else finite(value) for key, value in row.items()}
            rows.setdefault(int(row["update"]), {}).update(numbers)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    return tuple(rows[update] for update in sorted(rows))


def is_written(folder: RunFolder) -> bool:
    """Whether a process owns the folder. A process of another machine, invisible from here, does until it releases the
    folder."""
    owner = folder.path / OWNER
    claim = read_claim(owner / name(newest_fence(owner)))
    if claim is None or claim.ended:
        return False
    return claim.machine != machine() or began(claim.pid) == claim.began


def _with_records(folder: RunFolder, title: str, updates: int, recipe: str, values: Mapping[str, Any]) -> StoredRun:
    writing = is_written(folder)  # checked first: a run writes its summary before it gives the folder back
    rows, summary = read_metrics(folder.metrics), None if writing else _summary(folder.summary)
    return StoredRun(
        folder=folder,
        name=title,
        updates=updates,
        recipe=recipe,
        values=values,
        earlier_recipes=[(last, file.read_text()) for last, file in folder.earlier_recipes],
        rows=rows,
        writing=writing,
        restarts=read_restarts(folder.restarts),
        summary=summary,
    )


def _summary(path: Path) -> Mapping[str, Any] | None:
    try:
        summary = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        raise DataError(f"{path} is not the summary of a run")
    return summary
