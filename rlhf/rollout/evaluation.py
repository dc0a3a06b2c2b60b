"""Evaluation: every held-out problem once, greedily. It runs at the boundary and never passes through the buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlhf.errors import RlhfError
from rlhf.rollout.group import GroupRollout
from rlhf.types import Failed, Filtered, Group, Task, Ticket


class EvaluationFailed(RlhfError):
    """Some problem of an evaluation has no number: an average over the others would be a different evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean reward over `problems` held-out problems with `distinct_answers` different answers."""

    reward: float
    problems: int
    distinct_answers: int
    groups: tuple[Group, ...] = field(repr=False)
    """One a problem, each of one sample."""


class Evaluator:
    """Asks one reply for each task. `rollout` plays groups of one, greedily, without a filter."""

    def __init__(self, *, rollout: GroupRollout, tasks: Sequence[Task]) -> None:
        self._rollout, self._tasks = rollout, tasks

    async def __call__(self, version: int) -> Evaluation:
        outcomes = await asyncio.gather(
            *(self._rollout(task, Ticket(ordinal=n, version=version)) for n, task in enumerate(self._tasks))
        )
        groups = tuple(_played(task, outcome) for task, outcome in zip(self._tasks, outcomes, strict=True))
        rewards = [score.value for group in groups for _, _, score in group.trainable]
        return Evaluation(
            reward=sum(rewards) / len(rewards),
            problems=len(rewards),
            distinct_answers=len({task.answer for task in self._tasks}),
            groups=groups,
        )


def _played(task: Task, outcome: Group | Filtered | Failed) -> Group:
    if isinstance(outcome, Failed):
        raise EvaluationFailed(f"evaluation: task {task.id}: {outcome.kind}: {outcome.detail}")
    return outcome.group if isinstance(outcome, Filtered) else outcome
