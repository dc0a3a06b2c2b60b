"""Learner and engines on the same devices take turns: the phases around the loop, which does not know of them.

    train            ranks hold everything    engines sleep
    weight sync      ranks hold weights       engines wake: weights, then the KV cache for the check of log-probs
    play, evaluate   ranks hold nothing       engines are awake
    save, export     as train, and afterwards a weight sync, since a sleeping engine forgets its weights

The side that leaves goes first, so a device never holds both. vLLM requires that no other process takes memory while an
engine falls asleep, so the ranks wait for the engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path

from rlhf.engines.engine import RemoteEngine
from rlhf.tracing import span
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.settings import Residency
from rlhf.types import Group, PolicyVersion, Updated, Written
from rlhf.weight_sync.publish import Publisher


class DeviceTurns:
    """A `Learner` and a `WeightSync` in one, since each needs the devices that the other has."""

    def __init__(self, learner: RemoteLearner, publisher: Publisher, engines: Sequence[RemoteEngine]) -> None:
        self._learner, self._publisher, self._engines = learner, publisher, tuple(engines)

    @property
    def version(self) -> PolicyVersion:
        return self._learner.version

    @property
    def logprob_difference(self) -> float:
        return self._publisher.logprob_difference

    async def update(self, groups: Sequence[Group]) -> Updated:
        await self._to_learner()
        return await self._learner.update(groups)

    async def publish(self) -> PolicyVersion:
        await self._hold("weights")
        version = await self._publisher.publish()
        await self._hold("nothing")
        return version

    async def snapshot(self, path: Path) -> Awaitable[Mapping[str, Written]]:
        await self._to_learner()
        written = await self._learner.snapshot(path)
        await self.publish()
        return written

    async def load(self, path: Path) -> None:
        await self._to_learner()
        await self._learner.load(path)
        await self.publish()

    async def export(self, path: Path) -> None:
        await self._to_learner()
        await self._learner.export(path)
        await self.publish()

    async def _to_learner(self) -> None:
        with span("sleep"):
            await asyncio.gather(*(engine.sleep() for engine in self._engines))
        await self._hold("everything")

    async def _hold(self, residency: Residency) -> None:
        with span("hold", held=residency):
            await self._learner.hold(residency)
