"""A watch beside work: which error is raised when several things fail at once."""

from __future__ import annotations

import asyncio

import pytest

from rlhf.cluster.watch import telling_error, while_alive
from rlhf.errors import DeadlinePassed, WeightSyncError, WorkerDied


class Cluster:
    """A cluster whose watch ends when `death` does."""

    def __init__(self) -> None:
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def watch(self):
        await self.death


async def test_work_that_ends_ends_the_watch() -> None:
    async def work() -> int:
        return 7

    assert await while_alive(Cluster(), work()) == 7


def test_a_death_is_told_before_a_named_failure_before_any_other() -> None:
    death, late, other = WorkerDied("learner-0", "x"), DeadlinePassed("engine-0", 3), ValueError("y")
    assert telling_error(ExceptionGroup("", [other, ExceptionGroup("", [late, death])])) is death
    assert telling_error(ExceptionGroup("", [other, late])) is late
    assert telling_error(other) is other


def test_a_death_is_told_rather_than_the_publish_that_it_broke() -> None:
    death, publish = WorkerDied("engine-0", "x"), WeightSyncError("engine-0", "prepare", 4, "engine-0 died: x")
    publish.__cause__ = death
    assert telling_error(ExceptionGroup("", [publish])) is death
    publish.__cause__ = DeadlinePassed("engine-0", 3)
    assert telling_error(ExceptionGroup("", [publish])) is publish


async def test_a_death_is_raised_and_cancels_the_work_with_its_message() -> None:
    cluster, messages = Cluster(), []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(cluster.death.set_exception, WorkerDied("engine-0", "killed by SIGKILL"))
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            messages.append(str(error))
            raise

    with pytest.raises(WorkerDied, match="engine-0 died: killed by SIGKILL"):
        await while_alive(cluster, work())
    assert messages == ["engine-0 died: killed by SIGKILL"]


async def test_what_the_work_raises_is_raised_as_its_telling_error() -> None:
    async def work() -> None:
        raise ExceptionGroup("", [ValueError("y"), DeadlinePassed("engine-0", 3)])

    with pytest.raises(DeadlinePassed, match="engine-0"):
        await while_alive(Cluster(), work())
