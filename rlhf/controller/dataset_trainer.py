"""What a trainer on a fixed dataset is: demonstrations, pairs or recorded episodes, in the order of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlhf.controller.run import Counts
from rlhf.rollout.evaluation import SetResult
from rlhf.trainer.learner import RemoteLearner


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One update: the learner's metrics, and the tokens that were learnt from."""

    metrics: Mapping[str, float]
    tokens: int


class DatasetTrainer(Protocol):
    """Examples in the order of training, and a learner that has started. Each `update` learns from the next
    `trainer.groups_per_update` of them; `evaluate` measures every held-out set, where `evaluates` says that there are
    any; `resume` goes on behind a checkpoint, and comes before any update. `shown` are the metrics that people watch.
    """

    @property
    def shown(self) -> tuple[str, ...]: ...
    @property
    def learner(self) -> RemoteLearner: ...
    @property
    def evaluates(self) -> bool: ...
    @property
    def counts(self) -> Counts: ...
    async def resume(self, checkpoint: Path) -> None: ...
    async def update(self) -> StepResult: ...
    async def evaluate(self) -> tuple[SetResult, ...]: ...
