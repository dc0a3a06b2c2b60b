"""The keeper of engines, over a router, a publisher and engines that do what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from rlhf.cluster.restarting import STARTS
from rlhf.controller.engine_commands import obeying
from rlhf.controller.engine_keeper import EngineKeeper
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.router import Router
from rlhf.errors import DeadlinePassed, EnginesLost, RlhfError, UserError, WorkerDied
from rlhf.runs.engine_requests import EnginesRequest, ask_run


class Engine:
    """Lost when `loss` is set; `start` raises `refuses`."""

    places = 1

    def __init__(self, name: str, refuses: RlhfError | None = None) -> None:
        self.name, self.refuses = name, refuses
        self.loss: asyncio.Future[RlhfError] = asyncio.get_running_loop().create_future()

    async def until_lost(self) -> RlhfError:
        return await asyncio.shield(self.loss)

    def lose(self, error: RlhfError) -> None:
        self.loss.set_result(error)

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
            self.router, cast(Any, self.publisher), cast(Any, self), min_engines=min_engines,
            tell=self.told.append,
        )  # fmt: skip

    async def replace(self, lost: Engine) -> Engine:
        return self.successors.pop(0)

    async def add(self) -> Engine:
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
        assert "engine-2 serves in the place of engine-0" in stage.told[-1]
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
        "too few engines are left (1, and rollout.min_engines is 2): none starts in the place of engine-0: "
        "engine-4.start did not answer within 300 s"
    )
    assert str(stage.publisher.ended).startswith(words)
    with pytest.raises(EnginesLost):
        await stage.router.generate(cast(Any, None), sampling=cast(Any, None), seed=0, session="s")


async def test_a_keeper_that_fails_ends_the_run() -> None:
    stage = Stage()
    async with stage.keeping():
        stage.engines[0].loss.set_result(DEATH)  # and no successor is there to pop
        await settled()
    assert "the keeper of an engine failed: IndexError" in str(stage.publisher.ended)


async def test_engines_are_added_and_removed_and_a_removed_one_is_not_replaced() -> None:
    stage = Stage(Engine("engine-2"), Engine("engine-3", DeadlinePassed("engine-3.start", 300)), min_engines=2)
    async with stage.keeping():
        await stage.keeper.add(1)
        assert stage.serving == stage.publisher.engines == ["engine-0", "engine-1", "engine-2"]
        await stage.keeper.remove("engine-0")
        await settled()
        assert stage.serving == stage.publisher.engines == ["engine-1", "engine-2"]
        assert stage.told == ["engine-2 was added", "the process of engine-0 ended", "engine-0 was removed"]
        with pytest.raises(UserError, match="no engine engine-0 serves; there are engine-1, engine-2"):
            await stage.keeper.remove("engine-0")
        with pytest.raises(UserError, match=r"the run needs 2 engines \(rollout\.min_engines\)"):
            await stage.keeper.remove("engine-2")
        with pytest.raises(DeadlinePassed):
            await stage.keeper.add(1)
        assert stage.told[-1] == "the process of engine-3 ended"
        assert stage.serving == ["engine-1", "engine-2"]


async def test_one_that_is_lost_while_it_joins_is_an_error_and_leaves_the_publisher() -> None:
    stage = Stage(stopped := Engine("engine-2"), Engine("engine-3"))
    stage.publisher.joins = asyncio.Event().wait
    async with stage.keeping():
        adding = asyncio.create_task(stage.keeper.add(1))
        await settled()
        stopped.lose(WorkerDied("engine-2", "its process has not answered for 30 s"))
        with pytest.raises(WorkerDied, match="not answered"):
            await asyncio.wait_for(adding, 5)
        assert stage.serving == ["engine-0", "engine-1"]
        assert stage.publisher.left == ["engine-2"]
        assert stage.told == ["the process of engine-2 ended"]
        stage.publisher.joins = None
        await stage.keeper.add(1)
        assert stage.serving == ["engine-0", "engine-1", "engine-3"]


async def test_requests_of_the_command_line_are_taken_and_answered(tmp_path: Path) -> None:
    stage = Stage(Engine("engine-2"))
    async with stage.keeping(), obeying(stage.keeper, tmp_path / "engines"):
        asked = partial(asyncio.to_thread, ask_run, tmp_path / "engines", seconds=10)
        answered = await asked(EnginesRequest(do="add", count=1))
        assert answered.serving == ("engine-0", "engine-1", "engine-2")
        with pytest.raises(UserError, match="no engine engine-7 serves"):
            await asked(EnginesRequest(do="remove", name="engine-7"))
    assert list((tmp_path / "engines").iterdir()) == []


def test_a_request_that_no_run_takes_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.runs.engine_requests.TAKE_SECONDS", 0.1)
    with pytest.raises(UserError, match="is it running"):
        ask_run(tmp_path / "engines", EnginesRequest(do="list"), 1)
    assert list((tmp_path / "engines").iterdir()) == []


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
