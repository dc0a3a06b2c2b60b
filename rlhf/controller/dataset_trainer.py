"""Interface of trainers on a fixed dataset: demonstrations, preference pairs or recorded episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlhf.controller.run import Counts
from rlhf.rollout.evaluation import SetResult
from rlhf.trainer.learner import RemoteLearner


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetUpdate:
    """The result of one update: the learner's metrics, and the number of trained tokens."""

    metrics: Mapping[str, float]
    tokens: int


class DatasetTrainer(Protocol):
    """A trainer on examples in a fixed order, with a learner that has started. Each `update` trains on the next
    `trainer.groups_per_update` examples. `evaluate` evaluates every held-out set, where `evaluates` says that there are
    any. `resume` continues from a checkpoint, and must precede any update. `shown` are the metrics to display."""

    @property
    def shown(self) -> tuple[str, ...]: ...
    @property
    def learner(self) -> RemoteLearner: ...
    @property
    def evaluates(self) -> bool: ...
    @property
    def counts(self) -> Counts: ...
    async def resume(self, checkpoint: Path) -> None: ...
    async def update(self) -> DatasetUpdate: ...
    async def evaluate(self) -> tuple[SetResult, ...]: ...
