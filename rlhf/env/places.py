"""A limited number of session slots: each slot taken is released exactly once."""

from __future__ import annotations

from collections.abc import Callable

from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task


class InPlace:
    """A session that releases its slot when it closes."""

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
