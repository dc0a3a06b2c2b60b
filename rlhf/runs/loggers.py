"""Loggers of metrics: always a JSONL file; TensorBoard and trackers by name, or your own by `module:Class`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rlhf.config import load_piece, registered
from rlhf.durable import unguarded, write_durably
from rlhf.errors import ConfigError, Raised, catch, logged_error
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter, finite

CLOSE_SECONDS = 60.0
"""Time that all loggers together have at the end of a run to send what waits."""


class NamedLogger(NamedTuple):
    """The module that a named logger imports, and the class that logs to it."""

    module: str
    logger: str


LIBRARIES = {
    "tensorboard": NamedLogger("tensorboard", "rlhf.runs.event_files:TensorBoardLogger"),
    "wandb": NamedLogger("wandb", "rlhf.runs.trackers:WandbLogger"),
    "mlflow": NamedLogger("mlflow", "rlhf.runs.trackers:MlflowLogger"),
    "trackio": NamedLogger("trackio", "rlhf.runs.trackers:TrackioLogger"),
    "comet": NamedLogger("comet_ml", "rlhf.runs.trackers:CometLogger"),
}


class EpisodeRow(NamedTuple):
    """A row of the table of sample episodes; its texts have no control characters."""

    task: str
    question: str
    reply: str
    reward: float
    status: str
    tokens: int


@runtime_checkable
class Logger(Protocol):
    """Receives metrics after an update (0: before the first), possibly in several calls with different names."""

    def log(self, update: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class EpisodeLogger(Logger, Protocol):
    """A logger that also receives a few episodes of the update every `run.table_every` updates."""

    def log_episodes(self, update: int, episodes: Sequence[EpisodeRow]) -> None: ...


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a logger is made with: the run's folder, its name, and the values of its recipe."""

    folder: RunFolder
    name: str
    recipe: Mapping[str, Any]

    def known_id(self, tracker: str) -> str | None:
        """Return the id that this run has in a tracker; None for a run that has none yet."""
        file = self.folder.trackers / tracker
        return file.read_text().strip() if file.exists() else None

    def keep_id(self, tracker: str, run_id: str) -> None:
        """Keep the id for a resume."""
        self.folder.check()
        self.folder.trackers.mkdir(exist_ok=True)
        write_durably(self.folder.trackers / tracker, f"{run_id}\n")


class JsonlLogger:
    """Writes a line per update: `update`, `time` (seconds since 1970) and every metric, with null for NaN and
    infinity."""

    def __init__(self, path: Path, may_write: Callable[[], None] = unguarded) -> None:
        self._lines = JsonlWriter(path, may_write=may_write)

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        numbers = {name: finite(float(value)) for name, value in metrics.items()}
        self._lines.write([{"update": update, "time": round(time.time(), 3)} | numbers])
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()


class BackgroundLogger:
    """Makes and calls a logger in its own thread, so that a slow or failing network does not stop the run. The first
    failure is reported. If a logger could not be made, the next update tries again."""

    def __init__(self, name: str, make: Callable[[], Logger], tell: Callable[[str], None]) -> None:
        self._name, self._make, self._tell = name, make, tell
        self._logger: Logger | None = None
        self._failed = False
        self._calls: SimpleQueue[Callable[[Logger], None] | None] = SimpleQueue()
        self._calls.put(lambda logger: None)  # makes it at once
        self._thread = Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._calls.put(lambda logger: logger.log(update, metrics))

    def log_episodes(self, update: int, episodes: Sequence[EpisodeRow]) -> None:
        self._calls.put(
            lambda logger: logger.log_episodes(update, episodes) if isinstance(logger, EpisodeLogger) else None
        )

    def close(self) -> None:
        """Close the logger after everything that waits; `ended` waits for it."""
        self._calls.put(None)

    def ended(self, deadline: float) -> None:
        """Wait until a time of `time.monotonic`, and report what is lost by then."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._tell(f"logger {self._name} did not finish: up to {self._calls.qsize()} calls are not logged")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._try(call)
        if self._logger is not None:
            self._try(lambda logger: logger.close())

    def _try(self, call: Callable[[Logger], None]) -> None:
        answer = catch(lambda: call(self._made()))
        if isinstance(answer, Raised) and not self._failed:
            self._failed = True
            cause = logged_error(answer.error)
            self._tell(f"logger {self._name} failed: {cause}; the run continues, and later failures are not reported")

    def _made(self) -> Logger:
        if self._logger is None:
            self._logger = self._make()
        return self._logger


class Loggers:
    """Several loggers behind one interface: `direct` ones get every metric, and their failures are the run's; those in
    the background get finite numbers."""

    def __init__(self, direct: Sequence[Logger], background: Sequence[BackgroundLogger] = ()) -> None:
        self._direct, self._background = tuple(direct), tuple(background)

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for logger in (*self._background, *self._direct):
            logger.log(update, numbers if isinstance(logger, BackgroundLogger) else metrics)

    def log_episodes(self, update: int, episodes: Sequence[EpisodeRow]) -> None:
        for logger in self._background if episodes else ():
            logger.log_episodes(update, episodes)

    def close(self) -> None:
        for logger in (*self._background, *self._direct):
            logger.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for waiting in self._background:
            waiting.ended(deadline)


def make_loggers(
    names: Sequence[str], run: LoggedRun, tell: Callable[[str], None], direct: Sequence[Logger] = ()
) -> Loggers:
    """Make the logger of `metrics.jsonl` and the recipe's loggers. Raises `ConfigError` if one is not installed."""
    check_loggers(names)
    background = [BackgroundLogger(name, maker_of(name, run), tell) for name in names]
    return Loggers([JsonlLogger(run.folder.metrics, run.folder.check), *direct], background)


def maker_of(name: str, run: LoggedRun) -> Callable[[], Logger]:
    """Return the function that makes a logger, for its own thread. Raises `ConfigError` if yours cannot be imported."""
    if name in LIBRARIES:
        return lambda: registered(LIBRARIES[name].logger)(run)
    piece = load_piece(name, "run.loggers")

    def make() -> Logger:
        if not isinstance(logger := piece(run), Logger):
            raise ConfigError(f"run.loggers: {name} is a {type(logger).__name__} without the methods log and close")
        return logger

    return make


def check_loggers(names: Sequence[str]) -> None:
    """Check that the named loggers are installed. Raises `ConfigError`."""
    for name in (name for name in names if name in LIBRARIES):
        module = LIBRARIES[name].module
        if find_spec(module) is None:
            raise ConfigError(f"run.loggers has {name}, which is not installed: pip install {module}, or remove it")
