"""Environments on the event loop itself: to hand a call to a thread and back costs more than a quick step does."""

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
    """No isolation, for code that is known to be quick: while a method runs, nothing else of the process does.

    Nothing can interrupt one that hangs. One that comes back after its deadline has failed all the same.
    """

    async def open(self, session: str) -> Environment:
        environment = at_once(self.spec.name, "open", self._create, self._deadlines.open_seconds)
        return InlineEnvironment(self.spec.name, environment, self._deadlines)


class InlineEnvironment:
    """One environment whose methods are called where they are awaited."""

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
        """Never raises: nobody needs what `close` does."""
        if not self._closed:
            self._closed = True
            quietly(self._environment.close)


def at_once(name: str, method: str, work: Callable[[], Any], seconds: float) -> Any:
    """What a method of an environment returns. Raises `EnvironmentFailed`."""
    began = time.monotonic()
    result = attempt(work, also=SystemExit)
    if isinstance(result, Raised):
        raise EnvironmentFailed(name, "raised", f"{method}: {exception_line(result.error)}") from result.error
    if (took := time.monotonic() - began) > seconds:
        detail = f"{method} took {took:.3g} s, not {seconds:g} s; isolation thread would have given it up"
        raise EnvironmentFailed(name, "timeout", detail)
    return result
