"""Environments hosted by this process: a limited number of sessions, each run by an isolation."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from rlhf.env.hosting.isolation import EnvironmentIsolation
from rlhf.env.places import InPlace
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment


class HostedEnvironments:
    """The `Environments` of an isolation, which the caller starts and stops.

    At most `max_sessions` are open at once; `open` waits up to `place_seconds` for a free slot.
    """

    def __init__(self, isolation: EnvironmentIsolation, *, max_sessions: int, place_seconds: float) -> None:
        self.spec = isolation.spec
        self._isolation, self._place_seconds = isolation, place_seconds
        self._places = asyncio.Semaphore(max_sessions)

    async def open(self, session: str) -> Environment:
        """A session in a slot of its own. Raises `EnvironmentFailed`, `refused` when no slot becomes free in time."""
        try:
            async with asyncio.timeout(self._place_seconds):
                await self._places.acquire()
        except TimeoutError:
            detail = f"session {session} got no place within {self._place_seconds:g} s; raise environment.max_sessions"
            raise EnvironmentFailed(self.spec.name, "refused", detail) from None
        with ExitStack() as failing:
            failing.callback(self._places.release)
            opened = InPlace(await self._isolation.open(session), self._places.release)
            failing.pop_all()
        return opened
