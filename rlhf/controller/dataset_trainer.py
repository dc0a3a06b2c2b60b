"""Base class of trainers on a fixed dataset: demonstrations, preference pairs or recorded episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf.controller.run import Counts
from rlhf.rollout.evaluation import SetResult
from rlhf.trainer.learner import RemoteLearner


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetUpdate:
    """The result of one update: the learner's metrics, and the number of trained tokens."""

    metrics: Mapping[str, float]
    tokens: int


class DatasetTrainer(ABC):
    """A trainer on examples in a fixed order, with a learner that has started. Each `update` trains on the next
    `batch_size` examples (`trainer.groups_per_update`). `evaluate` evaluates every held-out set, where `evaluates` says
    that there are any. `resume` continues from a checkpoint, before any update. `shown` are the metrics to display."""

    shown: tuple[str, ...] = ()
    evaluates = False

    def __init__(self, learner: RemoteLearner, batch_size: int) -> None:
        self.learner, self.batch_size = learner, batch_size

    @property
    def counts(self) -> Counts:
        return Counts(samples=self.learner.version * self.batch_size)

    async def resume(self, checkpoint: Path) -> None:
        await self.learner.load(checkpoint)

    @abstractmethod
    async def update(self) -> DatasetUpdate: ...

    async def evaluate(self) -> tuple[SetResult, ...]:
        return ()
