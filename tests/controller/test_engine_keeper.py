"""The keeper of engines, over a router, a publisher and engines that do what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from rlhf.cluster.restarts import STARTS, Restarts
from rlhf.controller.engine_keeper import EngineKeeper
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.router import Router
from rlhf.errors import DeadlinePassed, EnginesLost, RlhfError, WorkerDied


class Engine:
    """Lost when `loss` is set; `start` raises `refuses`."""

    places = 1

    def __init__(self, name: str, refuses: RlhfError | None = None) -> None:
        self.name, self.refuses, self.worker = name, refuses, self
        self.loss: asyncio.Future[RlhfError] = asyncio.get_running_loop().create_future()

    async def until_lost(self) -> RlhfError:
        return await asyncio.shield(self.loss)

    def lose(self, error: RlhfError) -> None:
        self.loss.set_result(error)

    def follow(self, worker: Engine) -> Engine:
        return worker

    async def start(self) -> None:
        if self.refuses:
            raise self.refuses


class Publisher:
    fails_over = False

    def __init__(self) -> None:
        self.engines: list[str] = []
        self.left: list[str] = []
        self.ended: EnginesLost | None = None
        self.joins: Callable[[], Any] | None = None

    async def join(self, target: Engine) -> None:
        if self.joins:
            await self.joins()
        self.engines.append(target.name)

    def leave(self, target: Engine) -> None:
        self.left.append(target.name)
        self.engines = [name for name in self.engines if name != target.name]

    def end(self, error: EnginesLost) -> None:
        self.ended = error


class Stage:
    def __init__(self, *successors: Engine, min_engines: int = 1) -> None:
        self.engines = [Engine("engine-0"), Engine("engine-1")]
        self.successors, self.told = list(successors), list[str]()
        self.publisher, self.router = Publisher(), Router(cast(Any, self.engines))
        self.publisher.engines = ["engine-0", "engine-1"]
        self.keeper = EngineKeeper(
            self.router, cast(Any, self.publisher), Restarts(cast(Any, self), self.told.append), min_engines=min_engines
        )

    async def replace(self, lost: Engine) -> Engine:
        return self.successors.pop(0)

    async def remove(self, engine: Engine) -> None:
        self.told.append(f"the process of {engine.name} ended")

    def keeping(self) -> Any:
        return self.keeper.keeping(cast(list[RemoteEngine], self.engines))

    @property
    def serving(self) -> list[str]:
        return [engine.name for engine in self.router.engines]


DEATH = WorkerDied("engine-0", "killed by SIGKILL")


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_another_engine_starts_in_the_place_of_one_that_is_lost_and_is_kept_too() -> None:
    stage = Stage(second := Engine("engine-2"), Engine("engine-3"))
    async with stage.keeping():
        stage.engines[0].loss.set_result(DEATH)
        await settled()
        assert stage.serving == stage.publisher.engines == ["engine-1", "engine-2"]
        assert "engine-2 replaces engine-0" in stage.told[-1]
        second.loss.set_result(WorkerDied("engine-2", "killed by SIGKILL"))
        await settled()
        assert stage.serving == stage.publisher.engines == ["engine-1", "engine-3"]


async def test_a_place_is_given_up_after_three_starts_and_a_run_without_enough_places_ends() -> None:
    refusing = [Engine(f"engine-{n}", DeadlinePassed(f"engine-{n}.start", 300)) for n in (2, 3, 4)]
    assert len(refusing) == STARTS
    stage = Stage(*refusing, min_engines=2)
    async with stage.keeping():
        stage.engines[0].loss.set_result(DEATH)
        await settled()
    words = (
        "too few engines are left (1, but rollout.min_engines is 2): engine-0 died: killed by SIGKILL; 3 starts of a "
        "replacement failed: engine-4.start did not answer within 300 s"
    )
    assert stage.told[-1] == "the process of engine-4 ended"
    assert str(stage.publisher.ended).startswith(words)
    with pytest.raises(EnginesLost):
        await stage.router.generate(cast(Any, None), sampling=cast(Any, None), seed=0, session="s")


async def test_a_keeper_that_fails_ends_the_run() -> None:
    stage = Stage()
    async with stage.keeping():
        stage.engines[0].loss.set_result(DEATH)  # and no successor is there to pop
        await settled()
    assert "the keeper of an engine failed: IndexError" in str(stage.publisher.ended)


async def test_one_that_is_lost_while_it_joins_leaves_the_publisher_and_another_follows() -> None:
    stage = Stage(stopped := Engine("engine-2"), Engine("engine-3"))
    stage.publisher.joins = asyncio.Event().wait
    async with stage.keeping():
        stage.engines[0].loss.set_result(DEATH)
        await settled()
        stage.publisher.joins = None
        stopped.lose(WorkerDied("engine-2", "its process has not answered for 30 s"))
        await settled()
        assert stage.serving == stage.publisher.engines == ["engine-1", "engine-3"]
        assert stage.publisher.left == ["engine-0", "engine-2"]
    assert stage.told[1].startswith(
        "start 1 of 3 of a replacement for engine-0 failed: engine-2 died: its process has not"
    )


async def test_the_end_of_the_block_ends_a_keeper_that_lost_its_first_cancellation() -> None:
    """As `asyncio.wait_for` of Python 3.11 loses one that comes with its result."""
    stage, lost = Stage(Engine("engine-2")), asyncio.Event()

    async def loses_one() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost.set()

    stage.publisher.joins = loses_one
    async with asyncio.timeout(10):
        async with stage.keeping():
            stage.engines[0].loss.set_result(DEATH)
            await settled()
    assert lost.is_set()
