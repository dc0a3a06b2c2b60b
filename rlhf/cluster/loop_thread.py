"""Event loops in threads, for deadlines that hold while the caller's loop is busy, for calls that block, and for
programs that run a loop of their own; and threads that run calls for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rlhf.errors import DeadlinePassed

T = TypeVar("T")


class BackgroundLoop:
    """One daemon thread with an event loop; the program does not wait for it at exit. Processes started in it end with
    it if a library, or their own request to the kernel, ties them to the thread that started them."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, and return or raise what it does. May be called from any event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def call(self, awaited: str, function: Callable[[], T], seconds: float) -> T:
        """Run a function that blocks in the thread; calls run one after the other. Raises `DeadlinePassed` when it does
        not return in time, earlier calls included."""

        async def work() -> T:
            return function()

        try:
            return await asyncio.wait_for(self.run(work()), seconds)
        except TimeoutError:
            raise DeadlinePassed(awaited, seconds) from None

    def wait_for(self, awaited: str, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Block for the result of a coroutine. Raises its exception, or `DeadlinePassed` after cancelling it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.cancel():
                raise DeadlinePassed(awaited, seconds) from None
            raise  # a timeout of the work itself

    def stop(self) -> None:
        """End the loop after its running tasks."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()


class CallThread:
    """A thread that runs calls for one event loop, one after the other, until `stop`.

    It is a daemon thread, because a call that never returns must not keep the process from ending; the threads of a
    `ThreadPoolExecutor` would.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs: after `stop`, whether a call has not returned yet."""
        return self._thread.is_alive()

    async def run(self, work: Callable[[], Any], seconds: float) -> Any:
        """Return the result of `work`, which returns exceptions as data (`Raised`). Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            return await self.submit(work)

    def submit(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Append a call."""
        future = self._loop.create_future()
        self._calls.put((work, future))
        return future

    def stop(self) -> None:
        """End the thread after the calls that were submitted."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            work, future = call
            result = work()
            with contextlib.suppress(RuntimeError):  # a closed loop has no waiters
                self._loop.call_soon_threadsafe(_set_result, future, result)


def _set_result(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def run_anywhere(work: Coroutine[Any, Any, T], interrupted: Callable[[], None] | None = None) -> T:
    """Run a coroutine as `asyncio.run` does; where a loop runs already, as in a notebook, run it in a thread.

    There Ctrl-C reaches only the caller's thread: the first one calls `interrupted`, and the work continues to its end.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "run") as executor:
        future = executor.submit(asyncio.run, work)
        try:
            return future.result()
        except KeyboardInterrupt:
            if interrupted is None:
                raise
            interrupted()
            return future.result()
