"""A clock that stops while an engine is paused: time paused for a weight sync does not count against a reply's
deadline."""

from __future__ import annotations

import asyncio
import time
from typing import Any

SHORTEST_WAIT_SECONDS = 0.02
"""Minimum time between two checks of a wait that reaches its deadline during a pause."""


class RunningClock:
    """`seconds` that an engine has run, without pauses. A nested pause has no effect."""

    def __init__(self) -> None:
        self._began, self._paused_seconds = time.monotonic(), 0.0
        self._paused_at: float | None = None

    @property
    def seconds(self) -> float:
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return now - self._began - self._paused_seconds

    def pause(self) -> None:
        """Stop the clock; no effect if it is stopped already."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()

    def go_on(self) -> None:
        """Restart the clock; no effect if it runs."""
        if self._paused_at is not None:
            self._paused_seconds += time.monotonic() - self._paused_at
            self._paused_at = None

    async def within(self, future: asyncio.Future[Any], seconds: float) -> bool:
        """Whether `future` is done before the clock advances by `seconds`; the future's result is not read. A pause
        ends within the deadlines of a weight sync, or with the run."""
        until = self.seconds + seconds
        while not future.done():
            left = until - self.seconds
            if left <= 0:
                return False
            await asyncio.wait((future,), timeout=max(left, SHORTEST_WAIT_SECONDS))
        return True
