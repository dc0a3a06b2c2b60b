"""One session of the server: consecutive episodes, one request at a time, each request id executed once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

from rlhf.env.encoding import task_from
from rlhf.env.hosting.isolation import EnvironmentIsolation
from rlhf.env.wire import Code, EnvironmentRefused, Json, ResetData
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task

ANSWERS_KEPT = 4
"""A client has one request in flight, so a retry asks for one of the last answers."""
STATUS = {"raised": 500, "protocol": 500, "timeout": 504, "lost": 410, "refused": 503}
"""HTTP status of a failed environment, by failure kind."""


class Phase(StrEnum):
    """The state of an episode. Every state except PLAYING is the reason why a step is refused."""

    NEW = "a step before the first reset"
    PLAYING = "playing"
    OVER = "a step after the episode's end"
    BROKEN = "a step after the environment broke"


class EnvironmentSession:
    """An environment with a session id. When it breaks permanently it calls `lost`, and its slot is freed."""

    def __init__(
        self, session_id: str, isolation: EnvironmentIsolation, environment: Environment, lost: Callable[[], object]
    ) -> None:
        self.id = session_id
        self.episode_id: str | None = None
        self.steps = 0
        self.phase = Phase.NEW
        self.closed = False
        self._isolation, self._environment, self._lost = isolation, environment, lost
        self.fresh = True
        self._answers: dict[str, asyncio.Task[Observation]] = {}
        self._running: asyncio.Task[Any] | None = None

    @property
    def busy(self) -> bool:
        return self._running is not None

    @property
    def state(self) -> Json:
        return {"episode_id": self.episode_id, "step_count": self.steps}

    async def reset(self, data: ResetData, seconds: float | None = None) -> Observation:
        """Start an episode, in a fresh environment. Raises `EnvironmentRefused`."""
        return await self._once(data.request_id, lambda: self._reset(data), seconds)

    async def step(self, action: Message, request_id: str | None = None, seconds: float | None = None) -> Observation:
        """Perform one step; a repeated `request_id` returns the first answer. Raises `EnvironmentRefused`."""
        return await self._once(request_id, lambda: self._step(action), seconds)

    async def close(self) -> None:
        """Cancel the running request and close the environment. Never raises, never waits for it."""
        self.closed = True
        if self._running is not None:
            self._running.cancel()
        await self._environment.close()

    async def _once(
        self, request_id: str | None, work: Callable[[], Coroutine[Any, Any, Observation]], seconds: float | None
    ) -> Observation:
        """The answer to a request. A request with an id continues when its client disconnects: the retry receives its
        answer."""
        try:
            if request_id is None:
                return await self._perform(work, seconds)
            if request_id not in self._answers:
                self._begin(request_id, work, seconds)
            return await asyncio.shield(self._answers[request_id])
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not self.closed or me is None:
                raise
            me.uncancel()  # the request was cancelled, not its caller
            raise EnvironmentRefused(Code.SESSION_ERROR, f"Session {self.id} was closed", 410, kind="lost") from None

    def _begin(
        self, request_id: str, work: Callable[[], Coroutine[Any, Any, Observation]], seconds: float | None
    ) -> None:
        self._refuse_if_busy()
        task = self._answers[request_id] = asyncio.create_task(self._perform(work, seconds))
        task.add_done_callback(_heed)
        for old in list(self._answers)[:-ANSWERS_KEPT]:
            del self._answers[old]

    def _refuse_if_busy(self) -> None:
        if self.busy:
            raise EnvironmentRefused(
                Code.SESSION_ERROR, f"Session {self.id} is busy with another request", 409, kind="order"
            )

    async def _perform(
        self, work: Callable[[], Coroutine[Any, Any, Observation]], seconds: float | None
    ) -> Observation:
        self._refuse_if_busy()
        self._running = asyncio.current_task()
        try:
            if seconds is None:  # the environment has its own deadlines
                said = await work()
            else:
                async with asyncio.timeout(seconds):
                    said = await work()
        except TimeoutError:
            self._break("lost")
            raise failed_environment("timeout", f"not done within the {seconds:g} s of the request") from None
        except EnvironmentFailed as failure:
            self._break(failure.kind)
            raise failed_environment(failure.kind, failure.detail) from None
        except asyncio.CancelledError:
            self._break("lost")
            raise
        finally:
            self._running = None
        self.phase = Phase.OVER if said.done else Phase.PLAYING
        return said

    def _break(self, kind: str) -> None:
        """After an exception a reset suffices; a hanging thread or a dead process ends the session."""
        self.phase = Phase.BROKEN
        if kind in ("timeout", "lost"):
            self._lost()

    async def _reset(self, data: ResetData) -> Observation:
        if not self.fresh:
            await self._environment.close()
            self._environment = await self._isolation.open(self.id)
        self.fresh = False
        self.episode_id, self.steps = data.episode_id or secrets.token_hex(8), 0
        seed = secrets.randbelow(2**31) if data.seed is None else data.seed
        task = task_from(data.task) if data.task else Task(id=f"seed-{seed}", messages=())
        return await self._environment.reset(task, seed=seed)

    async def _step(self, action: Message) -> Observation:
        if self.phase is not Phase.PLAYING:
            raise EnvironmentRefused(Code.EXECUTION_ERROR, f"{self.phase}: send a reset", 409, kind="order")
        self.steps += 1
        return await self._environment.step(action)


def failed_environment(kind: str, detail: str) -> EnvironmentRefused:
    """A failed environment as an error response."""
    return EnvironmentRefused(Code.EXECUTION_ERROR, f"{kind}: {detail}", STATUS[kind], kind=kind)


def _heed(task: asyncio.Task[Observation]) -> None:
    """Retrieve the exception of a task that may have no waiter left."""
    if not task.cancelled():
        task.exception()
