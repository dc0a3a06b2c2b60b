"""Instrumentation of the training loop: each class wraps one part, keeps its protocol, and adds timing and records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlhf.controller.episode_log import EpisodeLog
from rlhf.controller.notices import BatchNotices, LossNotices
from rlhf.controller.preemption import unless
from rlhf.protocols import Learner, Rollout, WeightSync
from rlhf.rollout.evaluation import Evaluation, Evaluator
from rlhf.runs.ended import ended_in_evaluation
from rlhf.runs.episode_parts import EpisodeParts
from rlhf.runs.view import View
from rlhf.tracing import Clock
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.credit.statistics import batch_statistics, trained_statistics
from rlhf.types import Failed, Filtered, Group, PolicyVersion, Task, Ticket, Updated, Written

PROGRESS_SECONDS = 15.0
"""How often a run that waits for groups says how many it has."""
MANY_SAMPLES = 256
"""Samples of an update whose statistics a thread computes; those of fewer hardly hold the event loop up."""


class ObservedRollout:
    """A `Rollout` that registers every ticket in the episode log."""

    def __init__(self, rollout: Rollout, *, clock: Clock, log: EpisodeLog) -> None:
        self._rollout, self._clock, self._log = rollout, clock, log

    async def __call__(self, task: Task, ticket: Ticket) -> Group | Filtered | Failed:
        self._log.admitted(ticket, task)
        with self._clock.span("generate", ordinal=ticket.ordinal, version=ticket.version):
            return await self._rollout(task, ticket)


class ObservedBuffer:
    """A `Buffer` that records outcomes, tells losses, and times its waits. It gives no groups once the run `leaves`."""

    def __init__(
        self,
        buffer: TicketBuffer,
        *,
        clock: Clock,
        log: EpisodeLog,
        notices: LossNotices,
        leaves: Callable[[], object] = lambda: False,
        tell: Callable[[str], object] = lambda words: None,
    ) -> None:
        self._buffer, self._clock, self._log, self._notices = buffer, clock, log, notices
        self._leaves, self._tell = leaves, tell

    async def admit(self) -> Ticket:
        return await self._buffer.admit()

    def settle(self, ticket: Ticket, outcome: Group | Filtered | Failed) -> bool:
        kept = self._buffer.settle(ticket, outcome)
        self._log.settled(ticket, outcome, kept=kept)
        self._notices.notice(outcome)
        return kept

    async def take(self) -> list[Group]:
        telling = asyncio.create_task(self._tell_progress())
        try:
            with self._clock.span("wait"):
                return await unless(self._leaves, self._buffer.take()) or []
        finally:
            telling.cancel()

    def advance(self, version: PolicyVersion) -> None:
        self._buffer.advance(version)

    async def _tell_progress(self) -> None:
        """Tell what an update waits for, for as long as it does."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._tell(self._buffer.progress)


class ObservedLearner:
    """A `Learner` whose updates are timed and recorded, with the statistics of their batch among the metrics. Its
    batches are shown to `notices`."""

    def __init__(
        self,
        learner: Learner,
        *,
        clock: Clock,
        log: EpisodeLog,
        view: View,
        version: PolicyVersion,
        notices: Sequence[BatchNotices],
    ) -> None:
        self._learner, self._clock, self._log, self._view, self._notices = learner, clock, log, view, notices
        self._version = version
        self.seconds_to_first_update: float | None = None

    async def update(self, groups: Sequence[Group]) -> Updated:
        if self.seconds_to_first_update is None:
            self.seconds_to_first_update = self._clock.elapsed_seconds
        self._view.phase("train")
        with self._clock.span("train", version=self._version):
            if sum(len(group.samples) for group in groups) < MANY_SAMPLES:
                statistics = batch_statistics(groups, version=self._version)
                updated = await self._learner.update(groups)
            else:
                counting = asyncio.to_thread(batch_statistics, groups, version=self._version)
                updated, statistics = await asyncio.gather(self._learner.update(groups), counting)
        self._version += 1
        with self._clock.span("record", version=self._version):
            self._log.trained(groups, updated, self._version)
        own = [group for group in groups if not group.second_use]
        for notices in self._notices:
            notices.notice(self._version, own, statistics)
        counted = trained_statistics(groups, {(one.ordinal, one.sample) for one in updated.samples})
        return replace(updated, metrics=statistics | counted | dict(updated.metrics))

    async def snapshot(self, path: Path) -> Awaitable[Mapping[str, Written]]:
        with self._clock.span("save"):
            return await self._learner.snapshot(path)

    async def load(self, path: Path) -> None:
        await self._learner.load(path)


class ObservedEvaluator:
    """An evaluator that records its episodes, tells losses, and then releases the episodes: a run keeps the metrics of
    all its evaluations."""

    def __init__(self, evaluator: Evaluator, *, records: EpisodeParts, notices: LossNotices) -> None:
        self._evaluator, self._records, self._notices = evaluator, records, notices

    async def __call__(self, version: PolicyVersion) -> Evaluation:
        evaluation = await self._evaluator(version)
        for result in evaluation.sets:
            self._records.add(*ended_in_evaluation(result.groups, result.name))
            for group in result.groups:
                self._notices.notice(group)
        self._records.cut()
        return Evaluation(sets=tuple(replace(result, groups=()) for result in evaluation.sets))


class ObservedWeights:
    """A `WeightSync` that times its syncs."""

    def __init__(self, weights: WeightSync, *, clock: Clock, view: View) -> None:
        self._weights, self._clock, self._view = weights, clock, view

    async def publish(self) -> PolicyVersion:
        self._view.phase("weight_sync")
        with self._clock.span("weight_sync"):
            version = await self._weights.publish()
        self._view.phase("generate")
        return version
