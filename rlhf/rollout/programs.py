"""Run user programs with a timeout; every outcome is returned as a value."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from rlhf.cluster.loop_thread import CallThread
from rlhf.errors import Raised, catch, catch_awaiting


class NoOutcome(Enum):
    LATE = "it exceeded its timeout and was abandoned"
    NOT_STARTED = "the maximum number of abandoned programs is still running"


class Programs:
    """Runs programs for one event loop. A plain (not async) program runs in a daemon thread: one that hangs keeps
    running, and with `hung_limit` of these, no further program is started. An async program, or what a plain one
    returns to be awaited, runs on the event loop, and is cancelled at its timeout."""

    def __init__(self, *, hung_limit: int) -> None:
        self._hung_limit = hung_limit
        self._hung: set[CallThread] = set()

    async def outcome_of(self, program: Callable[..., Any], *arguments: object, seconds: float) -> Any:
        """Return the program's return value, `Raised` or `NoOutcome`."""
        until = time.monotonic() + seconds
        self._hung = {thread for thread in self._hung if thread.is_alive}
        if inspect.iscoroutinefunction(program):
            returned = program(*arguments)
        elif len(self._hung) >= self._hung_limit:
            return NoOutcome.NOT_STARTED
        else:
            thread = CallThread("agent")
            running = thread.submit(lambda: catch(lambda: program(*arguments), also=BaseException))
            thread.stop()
            try:
                returned = await _within(running, seconds)
            finally:
                self._hung |= {thread} if running.cancelled() else set()
        if not inspect.isawaitable(returned):  # as an object with an async `__call__` and a decorated function return
            return returned
        return await _within(asyncio.ensure_future(catch_awaiting(returned)), until - time.monotonic())


async def _within(running: asyncio.Future[Any], seconds: float) -> Any:
    """Return the result within `seconds`; otherwise the future is cancelled, and the result `LATE`."""
    try:
        await asyncio.wait((running,), timeout=seconds)
        if running.cancelled():  # by the program itself: a cancellation of the run is raised by the wait above
            return Raised(asyncio.CancelledError())
        return running.result() if running.done() else NoOutcome.LATE
    finally:
        running.cancel()
