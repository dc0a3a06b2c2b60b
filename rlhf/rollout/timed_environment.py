"""Environment wrapper: waits are timed and have a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.tracing import span
from rlhf.types import Message, Observation, Task


class TimedEnvironment:
    """`seconds` is how long the episode has waited for the environment so far; after `timeout_seconds`, `step` returns
    None. Raises `EnvironmentFailed`: of kind `timeout` where `reset` exceeds the limit, of kind `protocol` where it has
    no message or has a reward; what the environment raises passes through."""

    def __init__(self, environment: Environment, name: str, timeout_seconds: float) -> None:
        self._environment, self._name, self._timeout_seconds = environment, name, timeout_seconds
        self.seconds = 0.0
        self.infos: list[Mapping[str, Any]] = []

    async def reset(self, task: Task, seed: int) -> Observation:
        with span("environment/reset", detail=True):
            first = await self._answer(self._environment.reset(task, seed=seed))
        if first is None:
            detail = f"its reset took more than {self._timeout_seconds:g} s, the limit for one episode"
            raise EnvironmentFailed(self._name, "timeout", detail)
        if first.done or not first.messages:
            ended = "ended the episode" if first.done else "said nothing"
            raise EnvironmentFailed(self._name, "protocol", f"its reset {ended}, so there is nothing to reply to")
        if first.reward:
            raise EnvironmentFailed(
                self._name, "protocol", f"its reset has the reward {first.reward:g}, but no action earned it"
            )
        return first

    async def step(self, action: Message) -> Observation | None:
        """Return the environment's observation after the policy's action; None when the time is up."""
        with span("environment/step", detail=True):
            return await self._answer(self._environment.step(action))

    async def _answer(self, asked: Awaitable[Observation]) -> Observation | None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds - self.seconds):
                observation = await asked
        except TimeoutError:
            return None
        finally:
            self.seconds += time.monotonic() - began
        self.infos.append(observation.info)
        return observation
