"""Sessions of the server: each plays consecutive episodes, and executes each request id once."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from enum import StrEnum
from typing import Any

from rlhf.env.encoding import task_from
from rlhf.env.hosting.hosted import EnvironmentIsolation
from rlhf.env.wire import Code, EnvironmentRefused, Json, ResetData, Undecodable
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
    """An environment with a session id. When it breaks permanently it calls `lost`. `holder` is the task of the
    attached WebSocket, if any; a new WebSocket replaces an earlier one."""

    def __init__(
        self, session_id: str, isolation: EnvironmentIsolation, environment: Environment, lost: Callable[[], object]
    ) -> None:
        self.id = session_id
        self.episode_id: str | None = None
        self.steps = 0
        self.phase = Phase.NEW
        self.closed = False
        self.last_used = time.monotonic()
        self.holder: asyncio.Task[None] | None = None
        self._isolation, self._environment, self._lost = isolation, environment, lost
        self._answers: dict[str, asyncio.Task[Observation]] = {}
        self._running: asyncio.Task[Any] | None = None

    @property
    def busy(self) -> bool:
        return self._running is not None

    @property
    def state(self) -> Json:
        return {"episode_id": self.episode_id, "step_count": self.steps}

    async def reset(self, data: ResetData) -> Observation:
        """Start an episode, in a fresh environment. Raises `EnvironmentRefused`."""
        return await self._once(data.request_id, lambda: self._reset(data))

    async def step(self, action: Message, request_id: str | None = None) -> Observation:
        """Perform one step; a repeated `request_id` returns the first answer. Raises `EnvironmentRefused`."""
        return await self._once(request_id, lambda: self._step(action))

    async def close(self) -> None:
        """Cancel the running request and close the environment. Never raises, never waits for it."""
        self.closed = True
        if self._running is not None:
            self._running.cancel()
        await self._environment.close()

    async def _once(self, request_id: str | None, work: Callable[[], Coroutine[Any, Any, Observation]]) -> Observation:
        """Return the answer to a request. With an id it continues when its client disconnects, for the retry."""
        try:
            if request_id is None:
                return await self._perform(work)
            if request_id not in self._answers:
                self._refuse_if_busy()
                task = self._answers[request_id] = asyncio.create_task(self._perform(work))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may have no waiter
                for old in list(self._answers)[:-ANSWERS_KEPT]:
                    del self._answers[old]
            return await asyncio.shield(self._answers[request_id])
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self.closed or caller is None:
                raise
            caller.uncancel()  # the request was cancelled, not its caller
            raise EnvironmentRefused(Code.SESSION_ERROR, f"Session {self.id} was closed", 410, kind="lost") from None

    def _refuse_if_busy(self) -> None:
        if self.busy:
            message = f"Session {self.id} is busy with another request"
            raise EnvironmentRefused(Code.SESSION_ERROR, message, 409, kind="order")

    async def _perform(self, work: Callable[[], Coroutine[Any, Any, Observation]]) -> Observation:
        self._refuse_if_busy()
        self._running = asyncio.current_task()
        try:
            observation = await work()
        except EnvironmentFailed as failure:
            self._break(failure.kind)
            kind, message = failure.kind, f"{failure.kind}: {failure.detail}"
            raise EnvironmentRefused(Code.EXECUTION_ERROR, message, STATUS.get(kind, 500), kind=kind) from None
        except asyncio.CancelledError:
            self._break("lost")
            raise
        finally:
            self._running = None
        self.phase = Phase.OVER if observation.done else Phase.PLAYING
        return observation

    def _break(self, kind: str) -> None:
        """After an exception a reset suffices; a hanging thread or a dead process ends the session."""
        self.phase = Phase.BROKEN
        if kind in ("timeout", "lost"):
            self._lost()

    async def _reset(self, data: ResetData) -> Observation:
        if self.phase is not Phase.NEW:
            await self._environment.close()
            self._environment = await self._isolation.open(self.id)
        self.episode_id, self.steps = data.episode_id or secrets.token_hex(8), 0
        seed = secrets.randbelow(2**31) if data.seed is None else data.seed
        try:
            task = task_from(data.task) if data.task else Task(id=f"seed-{seed}", messages=())
        except Undecodable as error:
            raise EnvironmentRefused(Code.VALIDATION_ERROR, f"Invalid task: {error}", 422, errors=[]) from None
        return await self._environment.reset(task, seed=seed)

    async def _step(self, action: Message) -> Observation:
        if self.phase is not Phase.PLAYING:
            raise EnvironmentRefused(Code.EXECUTION_ERROR, f"{self.phase}: send a reset", 409, kind="order")
        self.steps += 1
        return await self._environment.step(action)


class EnvironmentSessions:
    """Opens, finds and ends sessions. Runs on one event loop; environment code runs elsewhere."""

    def __init__(self, isolation: EnvironmentIsolation, max_sessions: int, lease_seconds: float) -> None:
        self.isolation, self.max_sessions, self.lease_seconds = isolation, max_sessions, lease_seconds
        self._sessions: dict[str, EnvironmentSession] = {}
        self._opening: set[str] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def active(self) -> int:
        return len(self._sessions) + len(self._opening)

    async def open(self, session_id: str | None = None) -> EnvironmentSession:
        """Open a session with a new environment. Raises `EnvironmentRefused`."""
        if self.active >= self.max_sessions:
            message = f"Server at capacity: {self.active}/{self.max_sessions} sessions active"
            counts = {"active_sessions": self.active, "max_sessions": self.max_sessions}
            raise EnvironmentRefused(Code.CAPACITY_REACHED, message, 503, kind="refused", **counts)
        session_id = session_id or secrets.token_hex(16)
        if session_id in self._opening:
            raise EnvironmentRefused(Code.SESSION_ERROR, f"Session {session_id} is being opened", 409, kind="order")
        self._opening.add(session_id)  # the slot is taken while the constructor runs
        try:
            environment = await self.isolation.open(session_id)
        except EnvironmentFailed as failure:
            name = self.isolation.spec.name
            message = f"Failed to create environment {name}: {failure.detail}"
            raise EnvironmentRefused(Code.FACTORY_ERROR, message, 500, kind=failure.kind, factory_name=name) from None
        finally:
            self._opening.discard(session_id)
        session = EnvironmentSession(session_id, self.isolation, environment, lambda: self.end(session_id))
        self._sessions[session_id] = session
        return session

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[EnvironmentSession]:
        """Yield a session that ends with the block. Raises `EnvironmentRefused`."""
        session = await self.open()
        try:
            yield session
        finally:
            self.end(session.id)

    def find(self, session_id: str) -> EnvironmentSession:
        """Return the session with this id, its lease renewed. Raises `EnvironmentRefused`."""
        if session_id not in self._sessions:
            message = f"Unknown session_id: {session_id:.64}"
            raise EnvironmentRefused(Code.SESSION_ERROR, message, 404, kind="lost")
        session = self._sessions[session_id]
        session.last_used = time.monotonic()
        return session

    async def find_or_open(self, session_id: str) -> EnvironmentSession:
        """Return the session with an id that its client chose, opened at first. Raises `EnvironmentRefused`."""
        return self.find(session_id) if session_id in self._sessions else await self.open(session_id)

    def end(self, session_id: str) -> bool:
        """Free the slot at once; the environment is closed in the background. Returns whether the session existed."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return False
        closing = asyncio.create_task(session.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return True

    @contextlib.asynccontextmanager
    async def attached(self, session: EnvironmentSession) -> AsyncIterator[None]:
        """Attach the session to the running task, which keeps its lease."""
        if session.holder is not None:
            session.holder.cancel()
        session.holder = holder = asyncio.current_task()
        try:
            yield
        finally:
            if session.holder is holder:
                session.holder, session.last_used = None, time.monotonic()

    async def reap(self) -> None:
        """End sessions without holder and request whose lease has expired; runs forever."""
        while True:
            await asyncio.sleep(self.lease_seconds / 4)
            oldest = time.monotonic() - self.lease_seconds
            for session in list(self._sessions.values()):
                if session.holder is None and not session.busy and session.last_used < oldest:
                    self.end(session.id)

    async def stop(self) -> None:
        for session_id in list(self._sessions):
            self.end(session_id)
        await asyncio.gather(*self._closing)
