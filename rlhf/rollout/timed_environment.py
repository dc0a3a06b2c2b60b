"""Environment wrapper: waits are timed and have a deadline, and answers are validated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace

from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task, finite_number


class TimedEnvironment:
    """`seconds` is how long the episode has waited for the environment so far; `timeout_seconds` is the limit.

    After the timeout `step` returns None. Raises `EnvironmentFailed`: of kind `timeout` where `reset` exceeds the
    limit, of kind `protocol` for an invalid observation; errors that the environment raises pass through.
    """

    def __init__(self, environment: Environment, name: str, timeout_seconds: float) -> None:
        self._environment, self._name, self._timeout_seconds = environment, name, timeout_seconds
        self.seconds = 0.0

    async def reset(self, task: Task, seed: int) -> Observation:
        """Reset the environment; returns the first observation."""
        first = await self._answer(self._environment.reset(task, seed=seed))
        if first is None:
            detail = f"its reset took more than the {self._timeout_seconds:g} s that an episode may wait for it"
            raise EnvironmentFailed(self._name, "timeout", detail)
        if first.done or not first.messages:
            ended = "ended the episode" if first.done else "said nothing"
            raise EnvironmentFailed(self._name, "protocol", f"its reset {ended}: there is nothing to reply to")
        return first

    async def step(self, action: Message) -> Observation | None:
        """Return the environment's observation after the policy's action; None when the episode's total waiting time
        exceeds the limit."""
        return await self._answer(self._environment.step(action))

    async def _answer(self, asked: Awaitable[Observation]) -> Observation | None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds - self.seconds):
                heard = await asked
        except TimeoutError:
            return None
        finally:
            self.seconds += time.monotonic() - began
        if wrong := _nonsense(heard):
            raise EnvironmentFailed(self._name, "protocol", wrong)
        return replace(heard, reward=finite_number(heard.reward))


def _nonsense(heard: Observation) -> str | None:
    """Return why an observation is invalid; None if it is valid."""
    for message in heard.messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            return f"it says {message!r:.80}, which is not a Message with text"
    if heard.reward is not None and finite_number(heard.reward) is None:
        return f"its reward is {heard.reward!r:.40}, which is not a number"
    return None
