"""Isolations by the names that recipes and commands use."""

from __future__ import annotations

from typing import get_args

from rlhf.env.config import Kind
from rlhf.env.hosting.inline import InlineIsolation
from rlhf.env.hosting.isolation import Deadlines, EnvironmentIsolation, Factory, ThreadIsolation
from rlhf.env.hosting.own import OwnIsolation
from rlhf.env.hosting.processes import ProcessIsolation

KINDS: tuple[Kind, ...] = get_args(Kind)


def isolation_of(kind: Kind, factory: Factory, deadlines: Deadlines, max_sessions: int = 1024) -> EnvironmentIsolation:
    """The isolation of that kind, not started yet. `max_sessions` are open at once: it limits the threads in use, and
    also the threads lost to code that hangs."""
    match kind:
        case "thread":
            return ThreadIsolation(factory, deadlines, max_sessions)
        case "process":
            return ProcessIsolation(factory, deadlines)
        case "inline":
            return InlineIsolation(factory, deadlines)
        case "self_managed":
            return OwnIsolation(factory, deadlines)
