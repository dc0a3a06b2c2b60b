"""Kinds of run, by the names that recipes use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rlhf.config import is_piece, load_bound, registered

PLAYED = ("rl", "distill")
"""Kinds that learn from episodes that engines play (`rlhf.controller.rl`). Distillation is `rl` with a teacher."""

FROM_DATA: Mapping[str, str] = {
    "offline": "rlhf.controller.offline:start_offline",
    "sft": "rlhf.controller.sft:start_sft",
    "reward_model": "rlhf.controller.preference:start_preference",
    "preference": "rlhf.controller.preference:start_preference",
}
"""Kinds that learn from data, without engines, and the `module:function` that starts the ranks and loads the data. A
user-defined kind is such a function; `rlhf.controller.supervised` documents its arguments."""

OF_EXAMPLES = {"sft": 1, "reward_model": 2, "preference": 2}
"""Kinds whose update is one optimizer step on examples that the policy did not sample, and the texts of an example."""


def start_of(kind: str, arguments: Mapping[str, Any]) -> Callable[..., Awaitable[Any]]:
    """Return the function that starts a kind that learns from data, a user-defined one with the recipe's `arguments`.
    Raises `ConfigError` for a function that cannot be imported, or does not accept them."""
    start: Callable[..., Awaitable[Any]]
    start = load_bound(kind, "kind", arguments, given=4) if is_piece(kind) else registered(FROM_DATA[kind])
    return start
