"""Blocking client of a remote session: an environment of plain methods, whose calls run on their own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as Late
from typing import Any, TypeVar

from rlhf.errors import DeadlinePassed
from rlhf.protocols import Environment, Environments
from rlhf.types import Message, Observation, Task

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread, so that a connection stays open between calls. `stop` ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="calls that block", daemon=True)
        self._thread.start()

    def run(self, awaited: str, call: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return the result of the coroutine. Raises its exception, or `DeadlinePassed` after cancelling it."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(seconds)
        except Late:
            if future.done():  # a timeout inside the call itself
                raise
            future.cancel()
            raise DeadlinePassed(awaited, seconds) from None

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingEnvironment:
    """One session of `environments`, opened at the reset. `seconds` is an additional deadline of each call."""

    def __init__(self, environments: Environments, session: str, seconds: float = 120.0) -> None:
        self.spec = environments.spec
        self._environments, self._name, self._seconds = environments, session, seconds
        self._loop = LoopThread()
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
        return self._loop.run(f"{self.spec.name}.{method}", call, self._seconds)
