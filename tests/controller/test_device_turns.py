"""The order in which learner and engines leave and enter the devices that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlhf.controller.device_turns import DeviceTurns
from rlhf.errors import SaveFailed
from rlhf.trainer.settings import Residency
from rlhf.types import Group, PolicyVersion, Updated, Written

SYNC = ["hold weights", "publish", "hold nothing"]
TO_LEARNER = ["sleep 0", "sleep 1", "hold everything"]


class Devices:
    """Notes who does what; the learner, the weight sync and two engines in one."""

    version, logprob_difference = 3, 0.5

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.full = False

    async def hold(self, held: Residency) -> None:
        self.seen.append(f"hold {held}")

    async def update(self, groups: Sequence[Group]) -> Updated:
        self.seen.append("update")
        return Updated(metrics={"loss": 1.0}, samples=())

    async def snapshot(self, path: Path) -> Coroutine[Any, Any, Mapping[str, Written]]:
        self.seen.append("save")
        if self.full:
            raise SaveFailed("the disk is full")
        return self.written()

    async def written(self) -> Mapping[str, Written]:
        return {}

    async def load(self, path: Path) -> None:
        self.seen.append("load")

    async def export(self, path: Path) -> None:
        self.seen.append("export")

    async def publish(self) -> PolicyVersion:
        self.seen.append("publish")
        return self.version

    def engine(self, index: int) -> Engine:
        return Engine(self.seen, index)


class Engine:
    def __init__(self, seen: list[str], index: int) -> None:
        self._seen, self._index = seen, index

    async def sleep(self) -> None:
        self._seen.append(f"sleep {self._index}")


def phases(devices: Devices) -> DeviceTurns:
    return DeviceTurns(devices, devices, [devices.engine(0), devices.engine(1)])


def test_an_update_waits_for_all_engines_to_sleep_and_a_weight_sync_for_the_optimizer_to_leave() -> None:
    devices = Devices()
    both = phases(devices)
    asyncio.run(both.update(()))
    assert devices.seen == [*TO_LEARNER, "update"]
    assert asyncio.run(both.publish()) == 3
    assert devices.seen == [*TO_LEARNER, "update", *SYNC]
    assert (both.version, both.logprob_difference) == (3, 0.5)


async def saved(both: DeviceTurns, path: Path) -> None:
    await (await both.snapshot(path))


@pytest.mark.parametrize("work", ["save", "load", "export"])
def test_what_else_needs_the_whole_learner_brings_the_engines_their_weights_again(work: str) -> None:
    devices = Devices()
    both = phases(devices)
    calls: dict[str, Callable[[Path], Coroutine[Any, Any, None]]] = {
        "save": partial(saved, both),
        "load": both.load,
        "export": both.export,
    }
    asyncio.run(calls[work](Path("folder")))
    assert devices.seen == [*TO_LEARNER, work, *SYNC]


def test_a_checkpoint_that_fails_says_so_and_wakes_nobody() -> None:
    devices = Devices()
    devices.full = True
    with pytest.raises(SaveFailed, match="the disk is full"):
        asyncio.run(phases(devices).snapshot(Path("folder")))
    assert devices.seen == [*TO_LEARNER, "save"]
