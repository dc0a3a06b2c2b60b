"""The runs that are shown, and their recorded episodes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf.apps.dashboard.answers import card
from rlhf.apps.dashboard.episode_index import EpisodeIndex
from rlhf.errors import UserError
from rlhf.runs.folder import RunFolder
from rlhf.runs.stored_run import is_written

LOG = logging.getLogger(__name__)
MOST_INDICES = 4
"""Runs whose episodes are held in memory."""
DEPTH = 2
"""Levels of folders in which runs are looked for."""


class Library:
    """Runs by name, and the episodes of the runs requested last."""

    def __init__(self, runs: Mapping[str, Path], below: Sequence[Path] = ()) -> None:
        self._runs, self._below = dict(runs), below
        self._lock = threading.Lock()
        self._indices: dict[str, EpisodeIndex] = {}
        self._cards: dict[str, tuple[object, dict[str, Any]]] = {}

    @property
    def runs(self) -> Mapping[str, Path]:
        """The runs that exist now, with new ones below the given folders."""
        with suppress(UserError):  # a folder that has lost its last run keeps its names
            self._runs |= find_runs(self._below)
        return self._runs

    def folder(self, name: str) -> RunFolder:
        """Return the folder of a run. Raises `UserError` for an unknown name."""
        if name not in self._runs and name not in self.runs:
            raise UserError(f"there is no run {name!r:.100} here")
        return RunFolder(self._runs[name])

    def card(self, name: str) -> dict[str, Any]:
        """Return a run's entry in the list of runs, which is read again only if its records have changed."""
        folder = self.folder(name)
        state = records_state(folder)
        if self._cards.get(name, (None,))[0] != state:
            self._cards[name] = (state, card(name, folder))
        return self._cards[name][1]

    def episodes(self, name: str) -> EpisodeIndex:
        """Return the episodes of a run, with the parts that exist now."""
        folder = self.folder(name)
        with self._lock:
            index = self._indices.pop(name, None) or EpisodeIndex(folder, LOG.warning)
            self._indices[name] = index
            if len(self._indices) > MOST_INDICES:
                del self._indices[next(iter(self._indices))]
        index.refresh()
        return index


def find_runs(paths: Iterable[Path]) -> dict[str, Path]:
    """Return run folders by name: those given, and those in given folders. Raises `UserError` if one holds none."""
    found: dict[str, Path] = {}
    for path in paths:
        folders = [path] if is_run(path) else _below(path)
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if not folders:
            raise UserError(f"{path} is not a run folder and contains none: a run folder has a recipe.yaml")
        for folder in folders:
            name = str(folder.relative_to(path)) if folder != path else folder.resolve().name
            found[name if name not in found else str(folder.resolve())] = folder
    return found


def records_state(folder: RunFolder) -> tuple[object, ...]:
    """Return what is another once the records of a run have changed, or its process has ended."""
    paths = (folder.recipe, folder.metrics, folder.summary, folder.episodes, folder.evaluations)
    times = [(path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None for path in paths]
    return str(folder.path), is_written(folder), *times


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    return (path / "recipe.yaml").is_file() and (path / "owner").is_dir()


def _below(path: Path) -> list[Path]:
    levels = ["/".join("*" * depth) for depth in range(1, DEPTH + 1)]
    return sorted(folder for level in levels for folder in path.glob(level) if is_run(folder))
