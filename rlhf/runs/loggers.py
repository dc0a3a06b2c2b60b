"""Loggers of metrics: always a JSONL file, and TensorBoard and W&B by name."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlhf.errors import UserError
from rlhf.runs.durable import unguarded
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter, finite


class Logger(Protocol):
    """Receives metrics after an update (0: before the first), possibly in several calls with different names."""

    def log(self, update: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


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


class WandbLogger:
    """Weights & Biases. Its environment variables set account and mode (`WANDB_MODE=offline`)."""

    def __init__(self, folder: RunFolder, name: str, recipe: Mapping[str, Any]) -> None:
        try:
            wandb = importlib.import_module("wandb")
        except ImportError:
            raise UserError(
                "run.loggers names wandb, which is not installed: pip install wandb, or set run.loggers=[tensorboard]"
            ) from None
        self._run = wandb.init(project="rlhf", name=name, dir=str(folder.path), config=dict(recipe))

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=update)

    def close(self) -> None:
        self._run.finish()


class Loggers:
    """Several loggers behind one interface."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = tuple(loggers)

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        for logger in self._loggers:
            logger.log(update, metrics)

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()


def make_loggers(names: Sequence[str], folder: RunFolder, run_name: str, recipe: Mapping[str, Any]) -> Loggers:
    """Make the logger of `metrics.jsonl` and the recipe's loggers. Raises `UserError` if one is not installed."""
    made: list[Logger] = [JsonlLogger(folder.metrics, folder.check)]
    if "tensorboard" in names:
        from rlhf.runs.event_files import TensorBoardLogger

        made.append(TensorBoardLogger(folder.tensorboard))
    if "wandb" in names:
        made.append(WandbLogger(folder, run_name, recipe))
    return Loggers(made)
