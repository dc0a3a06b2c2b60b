"""What commands and tests import beyond what a rank and an engine do."""

from __future__ import annotations

import importlib

MODULES = (
    "rlhf.cli",
    "rlhf.api",
    "rlhf.controller.rl",
    "rlhf.trainer.rank.preference_rank",
    "rlhf.trainer.rank.reward_rank",
    "peft",
)


def import_commands() -> None:
    for module in MODULES:
        importlib.import_module(module)
