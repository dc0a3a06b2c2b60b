"""Threads for calls that may hang: a call that exceeds its deadline is abandoned with its thread, and never
waited for."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rlhf.cluster.attempt import Raised, attempt
from rlhf.errors import DeadlinePassed

TICK_SECONDS = 0.02
"""Interval of the check for waiting calls, and the duration after which a call counts as slow. When every thread runs a
slow call, all waiting calls get new threads. Fast calls share the few existing ones: more threads would only wait for
one another."""


class TooManyHung(Exception):
    """The limit of abandoned calls that still run is reached, so no further call is accepted."""


class Threads:
    """Daemon threads that run calls for one event loop: `at_start` of them, more when calls wait, at most `limit`.

    A thread cannot be killed: threads of abandoned calls keep running, up to `hung_limit` of them, in addition to the
    others.
    """

    def __init__(self, name: str, limit: int, at_start: int = 2, hung_limit: int = 1024) -> None:
        self._name, self._limit, self._at_start, self._hung_limit = name, limit, at_start, hung_limit
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._running, self._hung = 0, 0
        self._current: set[_Call] = set()
        self._growth: asyncio.TimerHandle | None = None

    @property
    def hung(self) -> int:
        """Number of abandoned calls that have not returned."""
        return self._hung

    async def run(self, awaited: str, work: Callable[[], Any], seconds: float, late: Callable[[], None]) -> Any:
        """The result of `work`, or its exception. The deadline starts with the work; waiting for a thread ends when
        others end.

        Raises `DeadlinePassed`, `TooManyHung`. If the call is abandoned or cancelled, its thread calls `late` when
        `work` returns.
        """
        if self._hung >= self._hung_limit:
            raise TooManyHung
        call = _Call(work, late, asyncio.get_running_loop())
        self._submit(call)
        watch = call.loop.call_later(seconds, self._watch, call, awaited, seconds)
        try:
            return await call.outcome
        except asyncio.CancelledError:
            self._give_up(call)
            raise
        finally:
            watch.cancel()

    def spawn(self, work: Callable[[], Any]) -> None:
        """Run `work` without waiting. Its exceptions are dropped: it is the `close` of an unused environment."""
        self._submit(_Call(partial(quietly, work), do_nothing, asyncio.get_running_loop()))

    def stop(self) -> None:
        for _ in range(self._running):
            self._calls.put(None)

    def _submit(self, call: _Call) -> None:
        while self._running < min(self._at_start, self._limit):
            self._add_thread()
        self._calls.put(call)
        if self._growth is None:
            self._growth = call.loop.call_later(TICK_SECONDS, self._grow, call.loop)

    def _grow(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, now = self._calls.qsize(), time.monotonic()
        threads = self._running - self._hung
        slow = sum(call.started is not None and now - call.started > TICK_SECONDS for call in list(self._current))
        wanted = waiting if slow >= threads else int(threads - slow < self._at_start)
        for _ in range(min(wanted, waiting, self._limit - threads)):
            self._add_thread()
        self._growth = loop.call_later(TICK_SECONDS, self._grow, loop) if waiting else None

    def _add_thread(self) -> None:
        self._running += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _watch(self, call: _Call, awaited: str, seconds: float) -> None:
        """Check a call's deadline; it counts from the start of the work, so the timer may be set again."""
        if call.outcome.done():
            return
        left = seconds if call.started is None else call.started + seconds - time.monotonic()
        if left > 0:
            call.loop.call_later(left, self._watch, call, awaited, seconds)
        elif not call.outcome.done():
            self._give_up(call)
            call.outcome.set_exception(DeadlinePassed(awaited, seconds))

    def _give_up(self, call: _Call) -> None:
        """Abandon the call with its thread, and start a replacement thread."""
        call.given_up = True
        self._current.discard(call)
        if call.started is not None and not call.came_back:
            self._hung += 1
            call.counted = True
            self._add_thread()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.given_up:
                quietly(call.late)
                continue
            self._current.add(call)
            call.run()
            self._current.discard(call)
            if call.given_up:
                quietly(call.late)
                call.tell(self._came_back, call)
                return
        self._running -= 1

    def _came_back(self, call: _Call) -> None:
        self._running -= 1
        self._hung -= call.counted


class _Call:
    """One call and its thread's state."""

    def __init__(self, work: Callable[[], Any], late: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self.work, self.late, self.loop = work, late, loop
        self.outcome: asyncio.Future[Any] = loop.create_future()
        self.started: float | None = None
        self.given_up = self.came_back = self.counted = False

    def run(self) -> None:
        self.started = time.monotonic()
        result = attempt(self.work)
        self.came_back = True
        if isinstance(result, Raised):
            self.tell(self._fail, result.error)
        else:
            self.tell(self._succeed, result)

    def tell(self, how: Callable[[Any], None], value: object) -> None:
        """Schedule a callback on the loop; a closed loop has no waiters."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(how, value)

    def _succeed(self, result: object) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


def quietly(work: Callable[[], Any]) -> None:
    """Run the end of an abandoned environment: its exceptions are dropped."""
    with contextlib.suppress(Exception):
        work()


def do_nothing() -> None:
    pass
