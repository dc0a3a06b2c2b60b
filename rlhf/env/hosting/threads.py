"""Threads for calls that may hang: one that passes its deadline is given up, with its thread, and never waited for."""

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
"""How often is looked whether calls wait, and what makes a call slow. When every thread is in a slow call, all that
wait get threads of their own. Quick calls share the few there are: more would only wait for one another."""


class TooManyHung(Exception):
    """So many calls were given up and still run that no further one is taken."""


class Threads:
    """Daemon threads that run calls for one event loop. `at_start` of them, more when calls wait, at most `limit`.

    A thread cannot be killed: those of calls given up go on, up to `hung_limit` of them, beside the others.
    """

    def __init__(self, name: str, limit: int, at_start: int = 2, hung_limit: int = 1024) -> None:
        self._name, self._limit, self._at_start, self._hung_limit = name, limit, at_start, hung_limit
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._running, self._hung = 0, 0
        self._current: set[_Call] = set()
        self._growth: asyncio.TimerHandle | None = None

    @property
    def hung(self) -> int:
        """Calls that were given up and have not come back."""
        return self._hung

    async def run(self, awaited: str, work: Callable[[], Any], seconds: float, late: Callable[[], None]) -> Any:
        """What `work` returns or raises. The deadline starts with the work; waiting for a thread ends with the others'.

        Raises `DeadlinePassed`, `TooManyHung`. Given up, or cancelled: its thread calls `late` when `work` comes back.
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
        """Run `work`, and do not wait. What it raises is dropped: it is the `close` of a thing nobody uses any more."""
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
        """The alarm of a call: of the time since it started, so it may have to be set again."""
        if call.outcome.done():
            return
        left = seconds if call.started is None else call.started + seconds - time.monotonic()
        if left > 0:
            call.loop.call_later(left, self._watch, call, awaited, seconds)
        elif not call.outcome.done():
            self._give_up(call)
            call.outcome.set_exception(DeadlinePassed(awaited, seconds))

    def _give_up(self, call: _Call) -> None:
        """Leave the thread to its call, and have another in its place."""
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
    """One call on its way through a thread."""

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
        """Have the loop do something; a loop that is closed has nobody left who waits."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(how, value)

    def _succeed(self, result: object) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


def quietly(work: Callable[[], Any]) -> None:
    """Run the end of an environment that is given up: what it raises concerns nobody."""
    with contextlib.suppress(Exception):
        work()


def do_nothing() -> None:
    pass
