"""Environments in this process: plain methods in one thread per session, `async` methods on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from rlhf.cluster.loop_thread import CallThread
from rlhf.env.hosting.isolation import START_SECONDS, Deadlines, Factory, checked, is_async, load_spec, raised_failure
from rlhf.errors import (
    DeadlinePassed,
    EnvironmentFailed,
    Raised,
    catch,
    catch_awaiting,
    log_traceback,
    traceback_of,
)
from rlhf.protocols import AsyncEnvironment, Environment, LocalEnvironment
from rlhf.types import EnvironmentSpec, Message, Observation, Task, with_own_row


def logged_failure(name: str, method: str, error: BaseException) -> EnvironmentFailed:
    """Return the failure of a method that raised `error`, and log its traceback."""
    failure = raised_failure(name, method, error)
    if failure is not error:
        log_traceback(failure.detail, traceback_of(error))
    return failure


class ThreadIsolation:
    """Environments in threads of this process, one per session. A method that never returns loses its thread; `open`
    refuses new sessions once `limit` threads are lost. One that ends its process ends all sessions."""

    spec: EnvironmentSpec

    def __init__(self, factory: Factory, deadlines: Deadlines, limit: int = 1024) -> None:
        self._factory, self._deadlines, self._limit = factory, deadlines, limit
        self._name = f"environment {factory.name}"
        self._lost: set[CallThread] = set()

    async def start(self) -> None:
        """Import the environment in a thread: neither the import nor a constructor blocks the event loop."""
        thread = CallThread(self._name)
        try:
            loaded = await thread.run(lambda: catch(self._load), START_SECONDS)
        except TimeoutError:
            raise DeadlinePassed(f"the import of environment {self._factory.name}", START_SECONDS) from None
        finally:
            thread.stop()
        if isinstance(loaded, Raised):
            raise loaded.error
        self._create, self.spec = loaded

    async def open(self, session: str) -> Environment:
        self._lost = {thread for thread in self._lost if thread.is_alive}
        if len(self._lost) >= self._limit:
            detail = f"{len(self._lost)} calls never returned; with isolation: process they can be killed"
            raise EnvironmentFailed(self.spec.name, "refused", detail)
        try:
            thread = CallThread(self._name)
        except RuntimeError as error:
            raise EnvironmentFailed(self.spec.name, "refused", f"no thread for a session: {error}") from None
        opened = ThreadEnvironment(self.spec.name, thread, self._deadlines, lambda: self._lost.add(thread))
        environment = await opened.make(self._create)
        if not is_async(environment):
            return opened
        thread.stop()
        return LoopEnvironment(self.spec.name, environment, self._deadlines)

    async def stop(self) -> None:
        """Nothing to stop: sessions end their threads when they close."""

    def _load(self) -> tuple[Callable[[], LocalEnvironment | AsyncEnvironment], EnvironmentSpec]:
        create = self._factory.load()
        return create, load_spec(self._factory, create)


class ThreadEnvironment:
    """One environment and its thread. `lost` is called when a call is abandoned because it did not return in time."""

    def __init__(self, name: str, thread: CallThread, deadlines: Deadlines, lost: Callable[[], None]) -> None:
        self._name, self._thread, self._deadlines, self._lost = name, thread, deadlines, lost
        self._environment: Any = None
        self._closed = False

    async def make(self, create: Callable[[], Any]) -> Any:
        """Make the environment, and return it. Raises `EnvironmentFailed`."""

        def made() -> Any:
            self._environment = create()  # set in the thread: a constructor that returns late is closed, too
            return self._environment

        try:
            return await self._call("open", made, self._deadlines.open_seconds)
        except EnvironmentFailed:
            await self.close()
            raise

    async def reset(self, task: Task, *, seed: int) -> Observation:
        own = with_own_row(task)
        work, seconds = lambda: self._environment.reset(own, seed=seed), self._deadlines.reset_seconds
        return self._checked("reset", await self._call("reset", work, seconds))

    async def step(self, action: Message) -> Observation:
        work, seconds = lambda: self._environment.step(action), self._deadlines.step_seconds
        return self._checked("step", await self._call("step", work, seconds))

    async def close(self) -> None:
        """Close the environment without waiting: its thread does so when the call that may still run has returned."""
        if not self._closed:
            self._closed = True
            self._thread.submit(lambda: catch(self._close, also=BaseException))
            self._thread.stop()

    def _close(self) -> None:
        if self._environment is not None:
            self._environment.close()

    def _checked(self, method: str, given: object) -> Observation:
        observation = catch(lambda: checked(self._name, given))  # reading the returned value may raise
        if isinstance(observation, Raised):
            raise logged_failure(self._name, method, observation.error)
        return observation

    async def _call(self, method: str, work: Callable[[], Any], seconds: float) -> Any:
        try:
            # BaseException: sys.exit() in an environment is its failure, not ours.
            result = await self._thread.run(lambda: catch(work, also=BaseException), seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._lost()
            await self.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise EnvironmentFailed(self._name, "timeout", f"{method} did not return within {seconds:g} s") from None
        if isinstance(result, Raised):
            raise logged_failure(self._name, method, result.error)
        return result


class LoopEnvironment(ThreadEnvironment):
    """One environment with `async` methods, on the event loop. A call that exceeds its deadline is cancelled."""

    def __init__(self, name: str, environment: AsyncEnvironment, deadlines: Deadlines) -> None:
        self._name, self._environment, self._deadlines, self._closed = name, environment, deadlines, False

    async def close(self) -> None:
        """Close the environment, within the deadline of a reset. Never raises."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(EnvironmentFailed):
                await self._call("close", self._environment.close, self._deadlines.reset_seconds)

    async def _call(self, method: str, work: Callable[[], Any], seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                result = await catch_awaiting(_called(work))
        except TimeoutError:
            raise EnvironmentFailed(self._name, "timeout", f"{method} did not return within {seconds:g} s") from None
        if isinstance(result, Raised):
            raise logged_failure(self._name, method, result.error)
        return result


async def _called(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()
