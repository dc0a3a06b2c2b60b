"""Environments that this process hosts: a limited number of sessions, each run by an isolation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

from rlhf.env.config import IsolationKind
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.processes import ProcessIsolation
from rlhf.env.hosting.threads import ThreadIsolation
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task

EnvironmentIsolation = ThreadIsolation | ProcessIsolation
"""Makes environments, each for one session, and runs their code. Call `start` first, which imports the environment and
reads its spec, and `stop` last. An `EnvironmentFailed` of a constructor is of kind `raised` or `timeout`."""


def isolation_of(
    kind: IsolationKind, factory: Factory, deadlines: Deadlines, max_sessions: int = 1024
) -> EnvironmentIsolation:
    """Make an isolation. `max_sessions` also limits the threads lost to code that hangs."""
    if kind == "process":
        return ProcessIsolation(factory, deadlines)
    return ThreadIsolation(factory, deadlines, max_sessions)


class HostedEnvironments:
    """The `Environments` of an isolation: `max_sessions` at once; `open` waits up to `wait_seconds` for a slot."""

    def __init__(self, isolation: EnvironmentIsolation, *, max_sessions: int, wait_seconds: float) -> None:
        self.spec = isolation.spec
        self._isolation, self._wait_seconds = isolation, wait_seconds
        self._slots = asyncio.Semaphore(max_sessions)

    async def open(self, session: str) -> Environment:
        """Open a session in a slot. Raises `EnvironmentFailed`, `refused` when no slot becomes free in time."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._slots.acquire()
        except TimeoutError:
            detail = (
                f"no place was free for session {session} within {self._wait_seconds:g} s; raise "
                "environment.max_sessions"
            )
            raise EnvironmentFailed(self.spec.name, "refused", detail) from None
        with ExitStack() as failing:
            failing.callback(self._slots.release)
            opened = SlotEnvironment(await self._isolation.open(session), self._slots.release)
            failing.pop_all()
        return opened


class SlotEnvironment:
    """A session that releases its slot once, when it closes."""

    def __init__(self, environment: Environment, release: Callable[[], None]) -> None:
        self._environment, self._release, self._closed = environment, release, False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return await self._environment.reset(task, seed=seed)

    async def step(self, action: Message) -> Observation:
        return await self._environment.step(action)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()
        await self._environment.close()
