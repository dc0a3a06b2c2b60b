"""Work beside a watch over its workers: a death is known at once, and of several failures the telling one is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rlhf.cluster.worker import Cluster
from rlhf.errors import RlhfError, WorkerDied

T = TypeVar("T")
END_OF_ALL_SECONDS = 2.0
"""The end of a job reaches its workers and this process at about one time: for the word that it was no death."""


async def while_alive(cluster: Cluster, work: Coroutine[Any, Any, T]) -> T:
    """The work's result, or `WorkerDied` as soon as any worker ends; the work is then cancelled with the death's words.

    What else raises is raised as its telling error.
    """
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(cluster.watch())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait((working,), timeout=END_OF_ALL_SECONDS)
        if not working.done():
            working.cancel(str(watching.exception()))
            await asyncio.wait((working,))
        failures = [error for task in (watching, working) if (error := _failure(task))]
        if failures:
            raise telling_error(BaseExceptionGroup("", failures)) from None
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def telling_error(error: BaseException) -> BaseException:
    """A death before what followed from it, a failure with a name before any other."""
    return min(_leaves(error), key=lambda leaf: (not isinstance(leaf, WorkerDied), not isinstance(leaf, RlhfError)))


def _failure(task: asyncio.Future[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group, each before its causes: a publish fails because an engine died."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error, *(_leaves(error.__cause__) if error.__cause__ else [])]
