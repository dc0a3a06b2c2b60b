"""Kinds of run by the names that recipes know: what an update learns from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rlhf.config import is_piece, load_bound, registered

PLAYED = ("rl", "distill")
"""From episodes that engines play: `rlhf.controller.rl`. Distillation does what `rl` does, beside a teacher."""

FROM_DATA: Mapping[str, str] = {
    "offline": "rlhf.controller.offline:start_offline",
    "sft": "rlhf.controller.sft:start_sft",
    "reward_model": "rlhf.controller.preference:start_preference",
    "preference": "rlhf.controller.preference:start_preference",
}
"""From data, without engines: the `module:function` that starts the ranks and finds the data, as one of the user's own
is named. `rlhf.controller.supervised` says what it is called with."""

OF_EXAMPLES = ("sft", "reward_model", "preference")
"""Those whose update is one optimizer step on examples that nobody sampled."""


def start_of(kind: str, arguments: Mapping[str, Any]) -> Callable[..., Awaitable[Any]]:
    """The function that starts a kind that learns from data, one of the user's own with the recipe's `arguments`.

    Raises `ConfigError` for one that cannot be imported, or called so.
    """
    start: Callable[..., Awaitable[Any]]
    start = load_bound(kind, "kind", arguments, given=4) if is_piece(kind) else registered(FROM_DATA[kind])
    return start
