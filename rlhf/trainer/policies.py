"""Several policies over one base: adapters that share the ranks, and are trained one after another."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.cluster.worker import Worker
from rlhf.durable import synced
from rlhf.errors import CheckpointError, PolicyMismatch, TrainingDiverged, WorkerDied
from rlhf.images import PlacedImage
from rlhf.trainer.checkpoint import ADAPTER, POLICIES
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.statistics import batch_statistics, trained_statistics
from rlhf.trainer.league import League
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group, Routing, Updated, Written
from rlhf.weight_sync.types import Manifest, Rendezvous, Seconds


class PolicyWorker:
    """A `Worker` for one of its policies: calls go to that policy's part of it (`LearnerWorker.divide`)."""

    def __init__(self, worker: Worker, policy: str) -> None:
        self.name, self._worker, self._part = worker.name, worker, f"policies.{policy}"

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        return await self._worker.call(f"{self._part}.{method}", *args, timeout_seconds=timeout_seconds, **kwargs)

    async def until_death(self) -> WorkerDied:
        return await self._worker.until_death()


class PolicyLearners(RemoteLearner):
    """A learner of several policies: a `RemoteLearner` of each, one after another, whose update is that of a run of its
    own. All have the same version, and one weight sync sends all."""

    def __init__(
        self, workers: Sequence[Worker], config: TrainerConfig, *, league: League | None = None, **given: Any
    ) -> None:
        """`config` and what else is `given` are `RemoteLearner`'s; the config of a policy is in its settings. A
        `league` sees every update, and its members are copies of its policy."""
        super().__init__(workers, config, **given)
        self._workers, self._league, self._given = workers, league, given
        self._learners: dict[str, RemoteLearner] = {}
        self._frozen: tuple[str, ...] = ()

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self._learners)

    async def start(self, settings: LearnerSettings) -> dict[str, Any]:
        """Start every rank of every policy in `settings.policies`. Returns facts of the base."""
        names = [own.policy for own in settings.policies]
        await self._all(lambda worker: worker.divide(names), self._config.deepspeed.start_timeout_seconds)
        self._frozen = tuple(own.policy for own in settings.policies if own.frozen)
        facts = []
        for own in settings.policies:
            parts = [PolicyWorker(worker, own.policy) for worker in self._workers]
            self._learners[own.policy] = RemoteLearner(parts, own.trainer, **self._given)
            facts.append(await self._learners[own.policy].start(own))
        return facts[0]

    async def update(self, groups: Sequence[Group]) -> Updated:
        """Update every policy on the samples that it played; one without any keeps its weights. A metric of a policy is
        called `POLICY/NAME`. `PolicyMismatch` and `TrainingDiverged` name the policy."""
        async with self.turn:
            updates = {}
            for policy, learner in self._learners.items():
                own = [replace(group, policy=policy) for group in groups if policy not in self._frozen]
                try:
                    updates[policy] = await learner.update(own)
                except (PolicyMismatch, TrainingDiverged) as error:
                    raise type(error)(f"policy {policy}: {error}") from None
            version = self._version if self._plays else None
            metrics = await asyncio.to_thread(batch_statistics, groups, version=version)
            self._version += 1
            if self._league:
                metrics |= self._league.learn(groups, self._version)
                await self._enter(self._league)
        samples = tuple(chain.from_iterable(updated.samples for updated in updates.values()))
        named = {
            f"{policy}/{name}": value
            for policy, updated in updates.items()
            for name, value in updated.metrics.items()
            if policy not in self._frozen and not name.startswith("samples/lost")  # a lost sample has no policy
        }
        computed = sum(updated.metrics["tokens/computed"] for updated in updates.values())
        counts = trained_statistics(groups, {(one.ordinal, one.sample) for one in samples})
        return Updated(
            metrics=metrics | counts | {"tokens/computed": computed} | named, samples=samples, frozen=self._frozen
        )

    async def _enter(self, league: League) -> None:
        """Copy the league's policy into the member that it is to become, if any, and its adapter into a folder."""
        if slot := league.entrant(self._version):
            league.folder.mkdir(exist_ok=True)
            with TemporaryDirectory(dir=league.folder) as made:
                path = Path(made)
                await self._learners[league.policy].save(path)
                await self._learners[slot].load(path)
                copy = league.copy_of(slot)
                shutil.rmtree(copy, ignore_errors=True)  # of a run that was resumed from before
                (path / ADAPTER).rename(copy)

    async def snapshot(self, path: Path) -> Awaitable[Mapping[str, Written]]:
        """As `RemoteLearner.snapshot`, below `path/policies/POLICY`; the base is not written."""
        written = {}
        async with self.turn:
            for policy, learner in self._learners.items():
                own = path / POLICIES / policy
                own.mkdir(parents=True)
                # Begun here: a league's copy of the policy would be the next snapshot of its ranks.
                written[policy] = asyncio.ensure_future(await learner.snapshot(own))
            league = await asyncio.to_thread(synced, path, [self._league.write(path)]) if self._league else {}
        return self._all_written(written, league)

    async def load(self, path: Path) -> None:
        if (found := {one.name for one in (path / POLICIES).glob("*")}) != set(self._learners):
            raise CheckpointError(
                f"{path} has the policies {', '.join(sorted(found))}, but the recipe has {', '.join(self._learners)}; "
                "a resumed run keeps its policies and league.members"
            )
        async with self.turn:
            for policy, learner in self._learners.items():
                await learner.load(path / POLICIES / policy)
        versions = {policy: learner.version for policy, learner in self._learners.items()}
        if len(set(versions.values())) > 1:
            raise CheckpointError(f"{path} has policies of different versions ({versions}); use another checkpoint")
        self._version = max(versions.values())
        if self._league:
            self._league.read(path)

    async def export(self, path: Path) -> None:
        """Write every policy as a Hugging Face folder of its own, `path/POLICY`."""
        async with self.turn:
            for policy, learner in self._learners.items():
                await learner.export(path / policy)

    async def connect(self, rendezvous: Rendezvous) -> None:
        await next(iter(self._learners.values())).connect(rendezvous)

    async def manifest(self) -> Manifest:
        return await self._ranks[0].call(lambda worker: worker.manifest(), timeout_seconds=self._publish_seconds)

    async def send(self) -> Seconds:
        return (await self._all(lambda worker: worker.send(), self._publish_seconds))[0]

    async def token_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]:
        return await self._learners[policy].token_logprobs(token_ids, routing, images=images)

    async def rounded_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]:
        return await self._learners[policy].rounded_logprobs(token_ids, routing, images=images)

    async def perturb(self) -> None:
        for learner in self._learners.values():
            await learner.perturb()

    async def restore(self) -> None:
        for learner in self._learners.values():
            await learner.restore()

    async def _all_written(
        self, written: Mapping[str, Awaitable[Mapping[str, Written]]], league: Mapping[str, Written]
    ) -> dict[str, Written]:
        files = {policy: await one for policy, one in written.items()}
        own = {f"{POLICIES}/{policy}/{name}": one for policy, its in files.items() for name, one in its.items()}
        return own | dict(league)
