"""A run as its folder tells it, perhaps while another process writes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlhf.errors import DataError, UserError
from rlhf.runs.folder import RunFolder
from rlhf.runs.owner import FOLDER as OWNER
from rlhf.runs.owner import began, machine, name, newest_fence, read_claim

Row = Mapping[str, float | None]
"""The metrics of an update, with its `update` and `time`; None for NaN and infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What a run folder holds so far."""

    folder: RunFolder
    name: str
    updates: int
    """The number of updates that the recipe asks for."""
    recipe: str
    """The resolved recipe as text."""
    rows: tuple[Row, ...]
    """By update."""
    summary: Mapping[str, Any] | None
    """None while the run goes on."""


def read_run(path: Path) -> StoredRun:
    """Read recipe, metrics and summary of a run folder. Raises `UserError` for another folder, and `DataError` for a
    damaged file."""
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        raise UserError(f"{path} is not a run folder: it has no recipe.yaml")
    try:
        text = folder.recipe.read_text()
        recipe = yaml.safe_load(text)
        title, updates = str(recipe["name"]), int(recipe["trainer"]["updates"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        raise DataError(f"{folder.recipe} is not the recipe of a run") from None
    except OSError as error:
        raise UserError(f"{folder.recipe} cannot be read ({error.strerror})") from None
    rows, summary = read_metrics(folder.metrics), read_summary(folder)
    return StoredRun(folder=folder, name=title, updates=updates, recipe=text, rows=rows, summary=summary)


def read_metrics(path: Path) -> tuple[Row, ...]:
    """Read the whole lines of `metrics.jsonl`, by update; nothing if there is no such file. Raises `DataError` that
    names the damaged line."""
    rows: dict[int, dict[str, float | None]] = {}
    for number, line in enumerate(_lines(path), 1):
        try:
            row = json.loads(line)
            rows.setdefault(int(row["update"]), {}).update({key: _number(value) for key, value in row.items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{path}: line {number} holds no metrics of an update") from None
    return tuple(rows[update] for update in sorted(rows))


def read_summary(folder: RunFolder) -> Mapping[str, Any] | None:
    """Read `summary.json`; None if there is none, or only one of before the run was resumed."""
    try:
        if folder.summary.stat().st_mtime_ns < folder.recipe.stat().st_mtime_ns:
            return None
        summary = json.loads(folder.summary.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        raise DataError(f"{folder.summary} is not the summary of a run")
    return summary


def writer_died(folder: RunFolder) -> bool:
    """Whether the process that wrote the folder has ended. False if it may be on another machine."""
    owner = folder.path / OWNER
    claim = read_claim(owner / name(newest_fence(owner)))
    return claim is not None and (claim.ended or (claim.machine == machine() and began(claim.pid) != claim.began))


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None


def _number(value: object) -> float | None:
    if value is not None and not isinstance(value, int | float):
        raise TypeError("not a number")
    return value if value is not None and math.isfinite(value) else None
