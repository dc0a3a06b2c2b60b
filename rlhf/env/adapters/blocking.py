"""Blocking client of a remote session: an environment of plain methods, whose calls run on their own event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from rlhf.cluster.loop_thread import BackgroundLoop
from rlhf.protocols import Environment, Environments
from rlhf.types import Message, Observation, Task

T = TypeVar("T")


class BlockingEnvironment:
    """One session of `environments`, opened at the reset. `seconds` is an additional deadline of each call."""

    def __init__(self, environments: Environments, session: str, seconds: float = 120.0) -> None:
        self.spec = environments.spec
        self._environments, self._name, self._seconds = environments, session, seconds
        self._loop = BackgroundLoop(f"calls of {session}")
        self._session: Environment | None = None

    def reset(self, task: Task, *, seed: int) -> Observation:
        session = self._run("open", self._environments.open(self._name))
        self._session = session
        return self._run("reset", session.reset(task, seed=seed))

    def step(self, action: Message) -> Observation:
        if self._session is None:
            raise RuntimeError("step before reset")
        return self._run("step", self._session.step(action))

    def close(self) -> None:
        if self._session is not None:
            self._run("close", self._session.close())
            self._session = None
        self._loop.stop()

    def _run(self, method: str, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.wait_for(f"{self.spec.name}.{method}", call, self._seconds)
