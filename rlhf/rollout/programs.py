"""Programs of the user's own: run to an outcome, whatever they do."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Raised:
    """A program ended with an error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Late:
    """A program did not end in time, and was given up."""


async def outcome_of(program: Callable[..., Any], *arguments: object, seconds: float) -> Any:
    """What the program returns, `Raised` or `Late`.

    A plain one has a daemon thread, which cannot be killed: one that hangs goes on, and nobody waits for it. An async
    one runs on this event loop, and is cancelled.
    """
    if inspect.iscoroutinefunction(program):
        running: asyncio.Future[Any] = asyncio.ensure_future(_awaited(program(*arguments)))
    else:
        running = _in_thread(lambda: program(*arguments))
    try:
        await asyncio.wait((running,), timeout=seconds)
        if running.cancelled():  # by the program itself: a cancellation of the run is raised by the wait above
            return Raised(asyncio.CancelledError())
        return running.result() if running.done() else Late()
    finally:
        running.cancel()


async def _awaited(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except (asyncio.CancelledError, KeyboardInterrupt):  # the one is looked for by who waits, the other is a person's
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is the outcome
        return Raised(error)


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(result: object) -> None:
        if not outcome.done():
            outcome.set_result(result)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is the outcome
            result = Raised(error)
        with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody left who waits
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=run, name="agent", daemon=True).start()
    return outcome
