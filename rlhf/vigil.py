"""Work beside a watch over its workers: a death is known at once, and of several failures the telling one is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rlhf.cluster.worker import Cluster
from rlhf.errors import RlhfError, WorkerDied

T = TypeVar("T")


async def while_alive(cluster: Cluster, work: Coroutine[Any, Any, T]) -> T:
    """The work's result, or `WorkerDied` as soon as any worker ends."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(cluster.watch())
            result = await work
            watcher.cancel()
            return result
    except BaseExceptionGroup as group:
        raise telling_error(group) from None


def telling_error(error: BaseException) -> BaseException:
    """A death before what followed from it, a failure with a name before any other."""
    return min(_leaves(error), key=lambda leaf: (not isinstance(leaf, WorkerDied), not isinstance(leaf, RlhfError)))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
