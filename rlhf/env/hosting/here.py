"""Environments hosted by this process: so many sessions at once and no more, each behind an isolation."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from rlhf.env.hosting.isolation import EnvironmentIsolation
from rlhf.env.places import InPlace
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment


class HostedEnvironments:
    """The `Environments` of an isolation, which has been started and is stopped by whoever did so.

    At most `max_sessions` live at once; `open` waits `place_seconds` for a place.
    """

    def __init__(self, isolation: EnvironmentIsolation, *, max_sessions: int, place_seconds: float) -> None:
        self.spec = isolation.spec
        self._isolation, self._place_seconds = isolation, place_seconds
        self._places = asyncio.Semaphore(max_sessions)

    async def open(self, session: str) -> Environment:
        """A session in a place of its own. Raises `EnvironmentFailed`, `refused` when no place is free in time."""
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
