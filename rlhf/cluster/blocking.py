"""Runs blocking calls in a thread, with deadlines that hold even when a call hangs."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rlhf.cluster.attempt import Raised, attempt
from rlhf.errors import DeadlinePassed

T = TypeVar("T")


class BlockingCalls:
    """One daemon thread that runs calls one after the other.

    It is a daemon thread, because the program joins an executor's threads at exit, however long a call hangs. All calls
    share one thread, because a library may tie its processes to the thread that started them: Ray asks the kernel to
    kill its processes when that thread ends.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="blocking calls", daemon=True).start()

    async def run(self, awaited: str, call: Callable[[], T], seconds: float) -> T:
        """Returns or raises what `call` does. Raises `DeadlinePassed` when that takes longer, earlier queued calls
        included."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def settle(set_outcome: Callable[[Any], None], value: object) -> None:
            if not outcome.done():
                set_outcome(value)

        def answer() -> None:
            result = attempt(call)
            if isinstance(result, Raised):
                loop.call_soon_threadsafe(settle, outcome.set_exception, result.error)
            else:
                loop.call_soon_threadsafe(settle, outcome.set_result, result)

        self._calls.put(answer)
        try:
            return await asyncio.wait_for(outcome, seconds)
        except TimeoutError:
            raise DeadlinePassed(awaited, seconds) from None

    def _work(self) -> None:
        while True:
            self._calls.get()()
