"""Environments hosted by the test's process, started and ended with a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rlhf.env.config import IsolationKind
from rlhf.env.hosting.hosted import HostedEnvironments, isolation_of
from rlhf.env.hosting.isolation import Deadlines, Factory

BEHAVING = "tests.env.behaving:"


@asynccontextmanager
async def hosted(
    name: str,
    *,
    isolation: IsolationKind = "thread",
    turn: float = 5,
    place: float = 5,
    sessions: int = 8,
    arguments: Mapping[str, Any] | None = None,
    module: str = BEHAVING,
) -> AsyncIterator[HostedEnvironments]:
    """Host the environment `name` of `module`. `turn` is the deadline of a method, `place` that of a free session."""
    deadlines = Deadlines(open_seconds=20, reset_seconds=turn, step_seconds=turn)
    made = isolation_of(isolation, Factory(name=module + name, arguments=arguments or {}), deadlines, sessions)
    try:
        await made.start()
        yield HostedEnvironments(made, max_sessions=sessions, wait_seconds=place)
    finally:
        await made.stop()
