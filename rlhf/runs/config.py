"""Settings of a run's output."""

from __future__ import annotations

from typing import Literal

from rlhf.config import Config


class RunConfig(Config):
    """Settings of the run folder and the loggers."""

    dir: str | None = None
    """Folder of the run; default: `runs/NAME`. An existing one is moved aside to `NAME.1`, `NAME.2`, …"""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """Where metrics are logged besides the console and `metrics.jsonl`."""
    live: bool = True
    """A live view when the output is a terminal; otherwise plain lines."""
