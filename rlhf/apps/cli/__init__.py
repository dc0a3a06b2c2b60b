"""The commands of `rlhf`, one file per command. A command's module is imported on first use (`commands.train`), so the
command line starts fast and loads only what the command needs."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf.apps.cli import (  # isort: skip
        audit, check, check_model, doctor, drill, env_check, eval, explain, export, generate, init, options,
        plan, report, reward_check, score, serve_env, serve_policy, serve_reward, sweep_output, top, train,
        translate,
    )  # fmt: skip

__all__ = [
    "audit", "check", "check_model", "doctor", "drill", "env_check", "eval", "explain", "export", "generate",
    "init", "options", "plan", "report", "reward_check", "score", "serve_env", "serve_policy",
    "serve_reward", "sweep_output", "top", "train", "translate",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    """Import a command's module on first use (PEP 562)."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
