"""What a run writes and where it is shown."""

from __future__ import annotations

from typing import Literal

from rlhf.config import Config


class RunConfig(Config):
    """The run folder and the loggers."""

    dir: str | None = None
    """Folder of the run; `runs/NAME` when absent. An existing one is moved aside to `NAME.1`, `NAME.2`, …"""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """Where metrics go besides the console and `metrics.jsonl`."""
    live: bool = True
    """A live view when the output is a terminal; plain lines otherwise."""
