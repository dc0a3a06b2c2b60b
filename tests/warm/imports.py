"""What commands and tests import beyond what a rank and an engine do."""

from __future__ import annotations

import importlib

MODULES = (
    "rlhf.apps.cli.main",
    "rlhf.api",
    "rlhf.controller.rl",
    "rlhf.trainer.rank.pair_ranks",
    "rlhf.trainer.rank.pair_ranks",
    "peft",
)


def import_commands() -> None:
    for module in MODULES:
        importlib.import_module(module)
