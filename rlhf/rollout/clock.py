"""A clock that stands still while an engine is paused: a reply is not charged for the publish it waits for."""

from __future__ import annotations

import asyncio
import time
from typing import Any

SHORTEST_WAIT_SECONDS = 0.02
"""A wait that ends during a pause looks again after so long."""


class RunningClock:
    """`seconds` that an engine has run. A pause within a pause is one."""

    def __init__(self) -> None:
        self._began, self._paused_seconds = time.monotonic(), 0.0
        self._paused_at: float | None = None

    @property
    def seconds(self) -> float:
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return now - self._began - self._paused_seconds

    def pause(self) -> None:
        if self._paused_at is None:
            self._paused_at = time.monotonic()

    def go_on(self) -> None:
        if self._paused_at is not None:
            self._paused_seconds += time.monotonic() - self._paused_at
            self._paused_at = None

    async def within(self, future: asyncio.Future[Any], seconds: float) -> bool:
        """Whether `future` is done before the clock is `seconds` further; its outcome is not looked at. A pause ends
        within the deadlines of a publish, or with the run."""
        until = self.seconds + seconds
        while not future.done():
            left = until - self.seconds
            if left <= 0:
                return False
            await asyncio.wait((future,), timeout=max(left, SHORTEST_WAIT_SECONDS))
        return True
