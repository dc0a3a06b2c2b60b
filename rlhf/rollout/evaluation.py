"""Evaluation between updates: every held-out problem once, with as many replies as its set specifies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlhf.chat.thinking import after_thinking
from rlhf.data.config import EvaluationSetConfig
from rlhf.errors import RlhfError
from rlhf.rollout.at_k import average, majority_at, pass_at, passes, vote_of
from rlhf.rollout.group import GroupRollout, lost_to_environment
from rlhf.runs.lost_samples import commonest_failure, failures_of
from rlhf.types import (
    CAUSED_BY_REPLIES,
    EpisodeStatus,
    Failed,
    Filtered,
    Group,
    Sample,
    Task,
    Ticket,
    Trajectory,
    Unscored,
)

ENVIRONMENT_ATTEMPTS = 3
"""Attempts for a problem whose environment fails: a failure in one call of a hundred must not stop an evaluation."""


class EvaluationFailed(RlhfError):
    """A problem has no score: an average over the others would be a different evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """Held-out problems and how they are played. `rollout` plays groups of `config.samples`, without a filter."""

    name: str
    config: EvaluationSetConfig
    tasks: Sequence[Task]
    rollout: GroupRollout


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """The result of one set: the means over `problems` problems with `distinct_answers` different answers. For
    preference pairs, `problems` is the number of pairs, and there are neither answers nor a reward."""

    name: str
    problems: int
    metrics: Mapping[str, float]
    """`avg@n`, and `pass@k` and `maj@k` as the recipe lists them; `unscored`, the number of replies without a score;
    `tokens_mean` and `truncated` of all played episodes; with an environment `turns_mean` and
    `malformed_calls_mean`."""
    reward: float | None = None
    """`avg@n`."""
    distinct_answers: int = 0
    groups: tuple[Group, ...] = field(default=(), repr=False)
    """One group per problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The results of all sets, in the recipe's order. Where a single number is needed, it is the first set's."""

    sets: tuple[SetResult, ...]

    @property
    def reward(self) -> float | None:
        return self.sets[0].reward

    @property
    def problems(self) -> int:
        return self.sets[0].problems

    @property
    def distinct_answers(self) -> int:
        return self.sets[0].distinct_answers

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics, by the names under which they are logged."""
        by_set = {f"eval/{one.name}/{name}": value for one in self.sets for name, value in one.metrics.items()}
        return ({} if self.reward is None else {"eval/reward": self.reward}) | by_set


class Evaluator:
    """Evaluates every problem of every set, all concurrently."""

    def __init__(self, sets: Sequence[EvaluationSet]) -> None:
        self._sets = tuple(sets)

    def played_by(self, policy_of: Callable[[str, Task, int], str]) -> Evaluator:
        """Return the same evaluation with these policies in its roles."""
        return Evaluator([replace(one, rollout=replace(one.rollout, policy_of=policy_of)) for one in self._sets])

    async def __call__(self, version: int) -> Evaluation:
        return Evaluation(sets=tuple(await asyncio.gather(*(evaluate_set(one, version) for one in self._sets))))


async def evaluate_set(one: EvaluationSet, version: int) -> SetResult:
    """Evaluate one set. Raises `EvaluationFailed` when a problem has fewer scored replies than its metrics need."""
    asked = (_asked(one, task, Ticket(ordinal=n, version=version)) for n, task in enumerate(one.tasks))
    outcomes = await asyncio.gather(*asked)
    groups = tuple(_played(one, task, outcome) for task, outcome in zip(one.tasks, outcomes, strict=True))
    return result_of(one.name, one.config, groups)


def result_of(name: str, config: EvaluationSetConfig, groups: Sequence[Group]) -> SetResult:
    """Return the result of a set that was played, from its groups."""
    by_problem = [problem_metrics(group, config) for group in groups]
    metrics = {metric: average([numbers[metric] for numbers in by_problem]) for metric in by_problem[0]}
    return SetResult(
        name=name,
        reward=metrics[f"avg@{config.samples}"],
        problems=len(groups),
        distinct_answers=len({group.task.answer for group in groups}),
        metrics=metrics | reply_metrics(groups),
        groups=tuple(groups),
    )


def problem_metrics(group: Group, config: EvaluationSetConfig) -> dict[str, float]:
    """Return one problem's metrics over its scored replies: a reply without a score is not counted as zero."""
    rewards = [score.value for _, _, score in group.trainable]
    votes = [vote_of(after_thinking(trajectory.response), config.vote_after) for _, trajectory, _ in group.trainable]
    passed = sum(passes(reward, config.pass_reward) for reward in rewards)
    return (
        {f"avg@{config.samples}": average(rewards)}
        | {f"pass@{k}": pass_at(k, replies=len(rewards), passed=passed) for k in config.pass_at}
        | {f"maj@{k}": majority_at(k, votes, rewards) for k in config.majority_at}
    )


def reply_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return metrics over all replies together, scored or not."""
    samples = [sample for group in groups for sample in group.samples]
    played = [sample.trajectory for sample in samples if isinstance(sample.trajectory, Trajectory)]
    with_environment = [trajectory for trajectory in played if trajectory.conversation]
    metrics = {
        "unscored": float(sum(not sample.trainable for sample in samples)),
        "tokens_mean": average([trajectory.action_tokens for trajectory in played]),
        "truncated": average([trajectory.status is EpisodeStatus.TRUNCATED for trajectory in played]),
    }
    if with_environment:
        turns = [one.turns for one in with_environment]
        metrics["turns_mean"] = average(turns)
        metrics["malformed_calls_mean"] = average([one.malformed_calls for one in with_environment])
    return metrics


async def _asked(one: EvaluationSet, task: Task, ticket: Ticket) -> Group | Filtered | Failed:
    """Play one problem; failures of the environment, which say nothing about the policy, are retried."""
    for _ in range(ENVIRONMENT_ATTEMPTS - 1):
        outcome = await one.rollout(task, ticket)
        if not (isinstance(outcome, Failed) and any(map(lost_to_environment, outcome.samples))):
            return outcome
    return await one.rollout(task, ticket)


def _played(one: EvaluationSet, task: Task, outcome: Group | Filtered | Failed) -> Group:
    if isinstance(outcome, Failed):
        raise EvaluationFailed(
            f"evaluation on {one.name}: task {task.id}: {outcome.kind}: {outcome.detail}{_cure(outcome.samples)}"
        )
    group = outcome.group if isinstance(outcome, Filtered) else outcome
    needed = max((1, *one.config.pass_at, *one.config.majority_at))
    if len(group.trainable) < needed:
        raise EvaluationFailed(
            f"evaluation on {one.name}: task {task.id} needs {needed} scored replies and has {len(group.trainable)} "
            f"of {one.config.samples}; {commonest_failure(failures_of(group))}{_cure(group.samples)}"
        )
    return group


def _cure(samples: Sequence[Sample]) -> str:
    """Name the setting that scores replies that make their scorer fail; empty if none did."""
    if not any(isinstance(one.score, Unscored) and one.score.kind in CAUSED_BY_REPLIES for one in samples):
        return ""
    return "; an evaluation needs every score: correct the reward, or score such replies with reward.on_scorer_failure"
