"""Environments on the event loop itself: passing a call to a thread and back costs more than a fast step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rlhf.cluster.attempt import Raised, attempt
from rlhf.env.hosting.isolation import Deadlines, ThreadIsolation, checked, exception_line
from rlhf.env.hosting.threads import quietly
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment, LocalEnvironment
from rlhf.types import Message, Observation, Task


class InlineIsolation(ThreadIsolation):
    """No isolation, for code that is known to be fast: while a method runs, it blocks the event loop.

    A method that hangs cannot be interrupted. One that returns after its deadline has failed all the same.
    """

    async def open(self, session: str) -> Environment:
        environment = at_once(self.spec.name, "open", self._create, self._deadlines.open_seconds)
        return InlineEnvironment(self.spec.name, environment, self._deadlines)


class InlineEnvironment:
    """One environment whose methods run directly on the event loop."""

    def __init__(self, name: str, environment: LocalEnvironment, deadlines: Deadlines) -> None:
        self._name, self._environment, self._deadlines = name, environment, deadlines
        self._closed = False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        work, seconds = lambda: self._environment.reset(task, seed=seed), self._deadlines.reset_seconds
        return checked(self._name, at_once(self._name, "reset", work, seconds))

    async def step(self, action: Message) -> Observation:
        work, seconds = lambda: self._environment.step(action), self._deadlines.step_seconds
        return checked(self._name, at_once(self._name, "step", work, seconds))

    async def close(self) -> None:
        """Never raises: the result of `close` is not needed."""
        if not self._closed:
            self._closed = True
            quietly(self._environment.close)


def at_once(name: str, method: str, work: Callable[[], Any], seconds: float) -> Any:
    """The result of an environment's method. Raises `EnvironmentFailed`."""
    began = time.monotonic()
    result = attempt(work, also=SystemExit)
    if isinstance(result, Raised):
        raise EnvironmentFailed(name, "raised", f"{method}: {exception_line(result.error)}") from result.error
    if (took := time.monotonic() - began) > seconds:
        detail = f"{method} took {took:.3g} s, not {seconds:g} s; isolation thread would have given it up"
        raise EnvironmentFailed(name, "timeout", detail)
    return result
