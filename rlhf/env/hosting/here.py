"""Environments hosted by this process: every session has a thread of its own, so none ever holds up the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rlhf.errors import EnvironmentFailed
from rlhf.protocols import LocalEnvironment
from rlhf.types import EnvironmentSpec, Message, Observation, Task

T = TypeVar("T")
Factory = Callable[[], LocalEnvironment]
CLOSE_SECONDS = 5.0
"""How long a session is waited for at its end. One that hangs longer ends in its own time, or with the process."""


class HostedEnvironments:
    """`Environments` of this process, of which at most `max_sessions` live at once; `open` waits for a place.

    A session whose code hangs keeps its place until that code returns: a thread cannot be ended. `start` makes an
    environment to read its spec.
    """

    spec: EnvironmentSpec

    def __init__(
        self,
        factory: Factory,
        *,
        name: str,
        turn_timeout_seconds: float,
        start_timeout_seconds: float,
        max_sessions: int,
    ) -> None:
        self._factory, self._name = factory, name
        self._turn_seconds, self._start_seconds = turn_timeout_seconds, start_timeout_seconds
        self._places = asyncio.Semaphore(max_sessions)

    async def start(self) -> None:
        """Find out what the environment is. Raises `EnvironmentFailed`."""
        session = await self.open("start")
        try:
            self.spec = await session.spec()
        finally:
            await session.close()

    async def open(self, session: str) -> HostedEnvironment:
        """A new environment in a thread of its own. Raises `EnvironmentFailed`."""
        try:
            async with asyncio.timeout(self._start_seconds):
                await self._places.acquire()
        except TimeoutError:
            detail = f"session {session} got no place within {self._start_seconds:g} s; raise environment.max_sessions"
            raise EnvironmentFailed(self._name, "refused", detail) from None
        hosted = HostedEnvironment(self._name, session, timeout_seconds=self._turn_seconds, on_end=self._places.release)
        await hosted.make(self._factory)
        return hosted


class HostedEnvironment:
    """One session: an `Environment` whose code runs in a daemon thread, call after call.

    An answer that comes after its deadline is thrown away, and the environment is closed behind the call that was late.
    `on_end` is called on the event loop when the thread has nothing more to do.
    """

    def __init__(self, name: str, session: str, *, timeout_seconds: float, on_end: Callable[[], None]) -> None:
        self._name, self._session, self._seconds, self._on_end = name, session, timeout_seconds, on_end
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._environment: LocalEnvironment | None = None
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"environment {session}", daemon=True).start()

    async def make(self, factory: Factory) -> None:
        """Construct the environment; the session is over when that fails."""

        def construct() -> None:
            self._environment = factory()

        try:
            await self._ask(construct)
        except EnvironmentFailed:
            await self.close()
            raise

    async def spec(self) -> EnvironmentSpec:
        return self._checked(await self._ask(lambda: self._made.spec), EnvironmentSpec)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return self._checked(await self._ask(lambda: self._made.reset(task, seed=seed)), Observation)

    async def step(self, action: Message) -> Observation:
        return self._checked(await self._ask(lambda: self._made.step(action)), Observation)

    async def close(self) -> None:
        """Close the environment behind whatever it is doing; what it raises then is nobody's concern any more."""
        self._calls.put(lambda: self._close_environment())
        self._calls.put(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._ended.wait()

    @property
    def _made(self) -> LocalEnvironment:
        assert self._environment is not None, "a session is used after make"
        return self._environment

    async def _ask(self, call: Callable[[], T]) -> T:
        """What the environment's code returns, in its thread. Raises `EnvironmentFailed`."""
        answer: asyncio.Future[tuple[T | None, BaseException | None]] = self._loop.create_future()
        self._calls.put(lambda: self._tell(_settle, answer, _outcome(call)))
        try:
            async with asyncio.timeout(self._seconds):
                returned, error = await answer
        except TimeoutError:
            detail = f"session {self._session} did not answer within {self._seconds:g} s"
            raise EnvironmentFailed(self._name, "timeout", detail) from None
        if error is not None:
            raise EnvironmentFailed(self._name, "raised", f"{type(error).__name__}: {error}") from error
        return returned  # type: ignore[return-value]  # without an error it is what the call returned

    def _checked(self, returned: Any, kind: type[T]) -> T:
        if not isinstance(returned, kind):
            raise EnvironmentFailed(self._name, "protocol", f"it answered {returned!r:.80}, not a {kind.__name__}")
        return returned

    def _work(self) -> None:
        """The thread: one call after another, until there are no more."""
        while (call := self._calls.get()) is not None:
            call()
        self._tell(self._ended.set)
        self._tell(self._on_end)

    def _close_environment(self) -> None:
        if self._environment is not None:
            _outcome(self._environment.close)

    def _tell(self, what: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the event loop is over: nobody listens any more
            self._loop.call_soon_threadsafe(what, *arguments)


def _outcome(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """What a call of somebody's code returns, or what it raises."""
    try:
        return call(), None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code: whatever it raises becomes data
        return None, error


def _settle(answer: asyncio.Future[T], outcome: T) -> None:
    if not answer.done():  # otherwise it came after its deadline
        answer.set_result(outcome)
