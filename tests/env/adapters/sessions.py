"""Sessions in this process, for tests of what drives sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlhf.protocols import LocalEnvironment
from rlhf.types import Message, Observation, Task


class HostedHere:
    """`Environments` over a local one, whose steps hang when it is told so."""

    def __init__(self, create: Callable[[], LocalEnvironment], hangs: bool = False) -> None:
        self._create, self._hangs = create, hangs
        self.spec = create().spec
        self.opened = self.open_now = 0

    async def open(self, session: str) -> Session:
        self.opened += 1
        self.open_now += 1
        return Session(self, self._create(), self._hangs)


class Session:
    def __init__(self, host: HostedHere, environment: LocalEnvironment, hangs: bool) -> None:
        self._host, self._environment, self._hangs = host, environment, hangs

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return self._environment.reset(task, seed=seed)

    async def step(self, action: Message) -> Observation:
        if self._hangs:
            await asyncio.Event().wait()
        return self._environment.step(action)

    async def close(self) -> None:
        self._host.open_now -= 1
        self._environment.close()
