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
    """`seconds` is how long the episode has waited for the environment so far, `timeout_seconds` how long it may.

    When that is over `step` is answered with None. Raises `EnvironmentFailed`: of kind `timeout` where that happens
    before anything was asked, `protocol` for an answer that makes no sense, and whatever the environment itself raises.
    """

    def __init__(self, environment: Environment, name: str, timeout_seconds: float) -> None:
        self._environment, self._name, self._timeout_seconds = environment, name, timeout_seconds
        self.seconds = 0.0

    async def reset(self, task: Task, seed: int) -> Observation:
        """What is asked."""
        first = await self._answer(self._environment.reset(task, seed=seed))
        if first is None:
            detail = f"its reset took more than the {self._timeout_seconds:g} s that an episode may wait for it"
            raise EnvironmentFailed(self._name, "timeout", detail)
        if first.done or not first.messages:
            ended = "ended the episode" if first.done else "said nothing"
            raise EnvironmentFailed(self._name, "protocol", f"its reset {ended}: there is nothing to reply to")
        return first

    async def step(self, action: Message) -> Observation | None:
        """What the environment says to the policy's action; None when the episode has waited too long for it, all turns
        together."""
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
    """What is wrong with an observation; None where it can be read and counted."""
    for message in heard.messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            return f"it says {message!r:.80}, which is no Message with text"
    if heard.reward is not None and finite_number(heard.reward) is None:
        return f"its reward is {heard.reward!r:.40}, which is no number"
    return None
