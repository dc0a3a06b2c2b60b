"""The number of engines follows the load: the decision, and the callback over a keeper that does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlhf.controller.engine_keeper import ended
from rlhf.controller.engine_scaling import REST_SECONDS, UPDATES, EngineScaling, UpdateLoad, engines_to_add
from rlhf.controller.run import Pace
from rlhf.engines.config import EngineBoundsConfig
from rlhf.errors import PlacementError, RlhfError

BOUNDS = EngineBoundsConfig(min=1, max=3)


@pytest.mark.parametrize(
    ("engines", "waited", "busy", "change"),
    [
        (1, 0.6, 1.0, 1),
        (2, 0.6, 2.0, 1),
        (3, 0.6, 3.0, 0),  # no more than max
        (2, 0.5, 2.0, 0),
        (2, 0.3, 0.5, 0),  # between the two shares nothing changes
        (3, 0.05, 2.1, 0),  # two engines would not do
        (3, 0.05, 1.9, -1),
        (2, 0.0, 1.0, -1),
        (1, 0.0, 0.0, 0),  # no fewer than min
        (4, 0.6, 1.0, 0),  # somebody has added one by hand
        (0, 0.2, 0.0, 1),  # a place was given up
    ],
)
def test_the_shares_of_the_last_updates_decide(engines: int, waited: float, busy: float, change: int) -> None:
    recent = [UpdateLoad(seconds, seconds * waited, seconds * busy) for seconds in (1.0, 2.0, 3.0, 2.0)]
    assert len(recent) == UPDATES
    assert engines_to_add(recent, engines, BOUNDS) == change
    assert engines_to_add(recent[1:], engines, BOUNDS) == 0, "too few updates were measured"


def test_a_long_update_counts_by_its_time() -> None:
    waits_once = [UpdateLoad(10.0, 9.0, 10.0), *[UpdateLoad(1.0, 0.0, 1.0)] * (UPDATES - 1)]
    assert engines_to_add(waits_once, 1, BOUNDS) == 1


class Stage:
    """A run of updates of ten seconds, and a keeper whose changes last until they are let go."""

    def __init__(self, *refusals: RlhfError | None) -> None:
        self.serving, self.lost = ["engine-0"], 0
        self.refusals, self.tries, self.told = list(refusals), 0, list[str]()
        self.go = asyncio.Event()
        self.busy, self.now = 0.0, 0.0
        self.run = cast(Any, SimpleNamespace(clock=self, pace=None, last=False, left=None))

    @property
    def elapsed_seconds(self) -> float:
        return self.now

    @property
    def places(self) -> int:
        return len(self.serving) + self.lost

    async def add(self, count: int) -> None:
        self.tries += 1
        await self.go.wait()
        if self.refusals and (refusal := self.refusals.pop(0)):
            raise refusal
        self.serving.append(f"engine-{len(self.serving)}")

    async def remove(self, name: str) -> None:
        self.serving.remove(name)

    @asynccontextmanager
    async def scaling(self) -> AsyncIterator[EngineScaling]:
        callback = EngineScaling(BOUNDS, cast(Any, self), lambda: self.busy, self.told.append)
        yield callback
        await ended(callback.changes)

    async def update(self, callback: Any, *, waited: float, busy: float) -> None:
        self.now += 10
        self.busy += 10 * busy
        self.run.pace = Pace(seconds=10, phase_seconds={"generate": 10 * waited}, eta_seconds=0)
        await callback.on_step_end(self.run)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def updates(self, callback: Any, count: int, *, waited: float, busy: float = 1.0) -> None:
        for _ in range(count):
            await self.update(callback, waited=waited, busy=busy)


async def test_engines_come_and_go_one_at_a_time_and_what_is_measured_counts_anew() -> None:
    stage = Stage()
    async with stage.scaling() as callback:
        await callback.on_train_begin(stage.run)
        await stage.updates(callback, UPDATES + 5, waited=0.7)
        assert stage.tries == 1, "its start does not hold updates up, and no other starts meanwhile"
        stage.go.set()
        await asyncio.sleep(0)
        await stage.updates(callback, 1 + UPDATES - 1, waited=0.7)
        assert stage.serving == ["engine-0", "engine-1"]
        await stage.updates(callback, 1, waited=0.7)
        assert stage.serving == ["engine-0", "engine-1", "engine-2"]
        await stage.updates(callback, 1 + UPDATES, waited=0.05, busy=1.5)
        assert stage.serving == ["engine-0", "engine-1"]
    assert stage.told == [
        "2 engines serve now, because the learner waited 70% of its time",
        "3 engines serve now, because the learner waited 70% of its time",
        "2 engines serve now, because the learner waited 5% of its time",
    ]


async def test_a_start_that_fails_is_told_once_and_not_tried_again_for_a_while() -> None:
    no_room = PlacementError("none of the 1 nodes has room for one more engine")
    stage = Stage(no_room, no_room)
    stage.go.set()
    async with stage.scaling() as callback:
        await stage.updates(callback, UPDATES + 20, waited=0.7)
        assert stage.tries == 1
        await stage.updates(callback, round(REST_SECONDS / 10), waited=0.7)
        assert stage.tries == 2
        await stage.updates(callback, 48, waited=0.7)
    assert stage.serving == ["engine-0", "engine-1"]
    assert stage.told == [
        f"no engine was added, and none is for a while: {no_room}",
        "2 engines serve now, because the learner waited 70% of its time",
    ]


async def test_nothing_changes_while_the_place_of_a_lost_engine_gets_another() -> None:
    stage = Stage()
    stage.lost = 1
    async with stage.scaling() as callback:
        await stage.updates(callback, 2 * UPDATES, waited=0.7)
    assert stage.tries == 0


async def test_the_end_of_the_run_ends_a_start() -> None:
    stage = Stage()
    async with stage.scaling() as callback:
        await stage.updates(callback, UPDATES, waited=0.7)
        assert stage.tries == 1
    assert all(change.cancelled() for change in callback.changes)
