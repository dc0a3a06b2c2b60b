"""The sessions of a server: a limited number, each ended when its lease expires."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rlhf.env.hosting.isolation import EnvironmentIsolation
from rlhf.env.server.session import EnvironmentSession
from rlhf.env.wire import Code, EnvironmentRefused
from rlhf.errors import EnvironmentFailed


@dataclass(slots=True, kw_only=True)
class Lease:
    """How long a session is kept without a client. `holder` is the task of the attached WebSocket, if any."""

    session: EnvironmentSession
    last_used: float
    holder: asyncio.Task[None] | None = None
    ends_with_close: bool = False
    """The client chose the id: its close frame ends the session, and a new WebSocket replaces an earlier one."""


class EnvironmentSessions:
    """Opens, finds and ends sessions. Runs on one event loop; environment code runs elsewhere."""

    def __init__(self, isolation: EnvironmentIsolation, max_sessions: int, lease_seconds: float) -> None:
        self.isolation, self.max_sessions, self.lease_seconds = isolation, max_sessions, lease_seconds
        self._leases: dict[str, Lease] = {}
        self._opening = 0
        self._openings: dict[str, asyncio.Task[EnvironmentSession]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def active(self) -> int:
        return len(self._leases) + self._opening

    async def open(self, session_id: str | None = None) -> EnvironmentSession:
        """A session with a new environment. Raises `EnvironmentRefused`: at capacity, or when the environment cannot be
        made."""
        if self.active >= self.max_sessions:
            message = f"Server at capacity: {self.active}/{self.max_sessions} sessions active"
            counts = {"active_sessions": self.active, "max_sessions": self.max_sessions}
            raise EnvironmentRefused(Code.CAPACITY_REACHED, message, 503, kind="refused", **counts)
        session_id = session_id or secrets.token_hex(16)
        self._opening += 1  # the slot is taken while the constructor runs
        try:
            environment = await self.isolation.open(session_id)
        except EnvironmentFailed as failure:
            name = self.isolation.spec.name
            message = f"Failed to create environment {name}: {failure.detail}"
            raise EnvironmentRefused(Code.FACTORY_ERROR, message, 500, kind=failure.kind, factory_name=name) from None
        finally:
            self._opening -= 1
        session = EnvironmentSession(session_id, self.isolation, environment, lambda: self.end(session_id))
        self._leases[session_id] = Lease(session=session, last_used=time.monotonic())
        return session

    def find(self, session_id: str) -> EnvironmentSession:
        """The session with this id, its lease renewed. Raises `EnvironmentRefused`."""
        lease = self._lease(session_id)
        lease.last_used = time.monotonic()
        return lease.session

    async def find_or_open(self, session_id: str) -> EnvironmentSession:
        """For ids that clients choose: two concurrent first requests make one session. Raises `EnvironmentRefused`."""
        if session_id in self._leases:
            return self.find(session_id)
        if session_id not in self._openings:
            self._openings[session_id] = asyncio.create_task(self._open_chosen(session_id))
        return await asyncio.shield(self._openings[session_id])

    async def _open_chosen(self, session_id: str) -> EnvironmentSession:
        try:
            session = await self.open(session_id)
        finally:
            del self._openings[session_id]
        self._leases[session_id].ends_with_close = True
        return session

    def end(self, session_id: str) -> bool:
        """Free the slot at once; the environment is closed in the background. Returns whether the session existed."""
        lease = self._leases.pop(session_id, None)
        if lease is None:
            return False
        closing = asyncio.create_task(lease.session.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return True

    @contextlib.asynccontextmanager
    async def attached(self, session: EnvironmentSession) -> AsyncIterator[Lease]:
        """Attach the session to the running task: its lease cannot expire meanwhile. Raises `EnvironmentRefused` when
        another task holds it."""
        lease = self._lease(session.id)
        if lease.holder is not None and not lease.ends_with_close:
            message = f"Session {session.id} already has an attached WebSocket"
            raise EnvironmentRefused(Code.SESSION_ERROR, message, 409, kind="order")
        if lease.holder is not None:
            lease.holder.cancel()
        lease.holder = me = asyncio.current_task()
        try:
            yield lease
        finally:
            if lease.holder is me:
                lease.holder, lease.last_used = None, time.monotonic()

    async def reap(self) -> None:
        """End sessions without holder and request whose lease has expired; runs forever."""
        while True:
            await asyncio.sleep(self.lease_seconds / 4)
            now = time.monotonic()
            for session_id, lease in list(self._leases.items()):
                idle = lease.holder is None and not lease.session.busy
                if idle and lease.last_used + self.lease_seconds < now:
                    self.end(session_id)

    async def stop(self) -> None:
        for session_id in list(self._leases):
            self.end(session_id)
        await asyncio.gather(*self._closing)

    def _lease(self, session_id: str) -> Lease:
        try:
            return self._leases[session_id]
        except KeyError:
            raise EnvironmentRefused(
                Code.SESSION_ERROR, f"Unknown session_id: {session_id:.64}", 404, kind="lost"
            ) from None
