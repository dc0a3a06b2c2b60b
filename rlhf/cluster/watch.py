"""Awaits work while monitoring workers: a worker's death ends the wait, and the root cause of a failure is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rlhf.cluster.worker import Cluster
from rlhf.errors import RlhfError, WorkerDied

T = TypeVar("T")
END_OF_ALL_SECONDS = 3.0
"""Time for the work to end by itself after a worker's death: the end of a job reaches workers and this process at about
the same time, and is then not a worker failure."""


async def while_alive(cluster: Cluster, work: Coroutine[Any, Any, T]) -> T:
    """Return the work's result, or raise `WorkerDied` as soon as any worker ends; its message becomes the work's cancel
    message. If several errors occur, raise the root cause (`telling_error`)."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(cluster.watch())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((working,), timeout=END_OF_ALL_SECONDS)
        if not working.done():
            working.cancel(str(watching.exception()))
            await asyncio.wait((working,))
        ended = [task for task in (watching, working) if task.done() and not task.cancelled()]
        if failures := [error for task in ended if (error := task.exception())]:
            raise telling_error(BaseExceptionGroup("", failures)) from None
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def telling_error(error: BaseException) -> BaseException:
    """Return the root cause of a failure: a worker's death before its consequences, a named error before any other."""
    return min(_leaves(error), key=lambda leaf: (not isinstance(leaf, WorkerDied), not isinstance(leaf, RlhfError)))


def _leaves(error: BaseException) -> list[BaseException]:
    """List the errors of a group, each followed by its causes: a publish may fail because an engine died."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error, *(_leaves(error.__cause__) if error.__cause__ else [])]
