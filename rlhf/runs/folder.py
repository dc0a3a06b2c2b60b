"""The run folder: where everything of a run is, and nothing of an earlier one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rlhf.config import Config, Origins
from rlhf.errors import UserError
from rlhf.runs.resolved import resolved_yaml

FOLDERS = ("logs", "checkpoints", "tensorboard")
RECORDS = (
    "recipe.yaml", "metrics.jsonl", "episodes.jsonl", "evaluations.jsonl", "spans.jsonl", "summary.json", "reward.png",
    "tensorboard",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run's files."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make an empty run folder; one that exists is moved aside to `NAME.1`, `NAME.2`, …, never overwritten."""
        try:
            move_aside(path)
            for folder in FOLDERS:
                (path / folder).mkdir(parents=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {path} ({error.strerror}); set run.dir to another") from None
        return cls(path)

    @classmethod
    def keep(cls, path: Path) -> RunFolder:
        """The run folder at `path` with all that is in it; an empty one where there is none. Raises `UserError`."""
        try:
            for folder in FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot use the run folder {path} ({error.strerror}); set run.dir to another") from None
        return cls(path)

    def set_records_aside(self) -> None:
        """Move what an earlier attempt recorded to `aside.N`. Its logs stay: who runs this may be writing to them."""
        found = [record for name in RECORDS if not is_empty(record := self.path / name)]
        if not found:
            return
        aside = next(place for n in count(1) if not (place := self.path / f"aside.{n}").exists())
        aside.mkdir()
        for record in found:
            record.rename(aside / record.name)
        self.tensorboard.mkdir(exist_ok=True)

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def spans(self) -> Path:
        return self.path / "spans.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def reward_plot(self) -> Path:
        return self.path / "reward.png"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def write_recipe(self, recipe: Config, origins: Origins) -> None:
        """Write the resolved recipe with where each value came from."""
        write_atomically(self.recipe, resolved_yaml(recipe, origins))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`: whoever reads it finds the whole of it or none."""
        write_atomically(self.summary, json.dumps(summary, indent=2) + "\n")


def move_aside(path: Path) -> Path | None:
    """Rename `path`, if it exists and holds anything, to the first free `NAME.n`; return the new name."""
    if is_empty(path):
        return None
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return path.rename(aside)


def is_empty(path: Path) -> bool:
    """Whether there is no such file, or a folder with nothing in it."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def write_atomically(path: Path, text: str) -> None:
    """Write beside and rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)
