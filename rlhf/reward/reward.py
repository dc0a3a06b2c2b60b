"""The reward of a recipe: one scorer, called concurrently for all trajectories of a group, or several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf.errors import ConfigError, NoReference
from rlhf.http.outages import Outages
from rlhf.reward.code.scoring import CodeScorer
from rlhf.reward.config import RewardConfig, ScorerConfig
from rlhf.reward.conventions import DOES_NOT_APPLY
from rlhf.reward.environment import EnvironmentReward
from rlhf.reward.judge import PairwiseJudge, PointwiseJudge
from rlhf.reward.process import ScorerPool
from rlhf.reward.remote import RemoteReward, client_of
from rlhf.reward.reward_interface import LiveReward
from rlhf.reward.rules import exact, tagged_blocks, zero_reward
from rlhf.reward.wire import NULLS_HEADER
from rlhf.types import CAUSED_BY_REPLIES, Scored, Task, Trajectory, Unscored, exact_sum, is_finite

QUICK = {"exact": exact, "format": tagged_blocks, "none": zero_reward}
IN_WORKERS = {"regex": "rlhf.reward.rules:regex", "math": "rlhf.reward.math:math"}
"""Rules without a time limit: a pattern can backtrack, and an expression can grow, without bound."""
RULE_BYTES = 2 * 2**30
"""Memory limit of each worker of such a rule."""


class Reward:
    """A `RewardFunction` with one scorer. A task without the answer that the scorer needs is unscored."""

    def __init__(
        self, name: str, scorer: Scorer, row_of: Callable[[Task], Mapping[str, Any]], needs_answer: bool
    ) -> None:
        self.name, self.needs_answer = name, needs_answer
        self.scorer, self._row_of = scorer, row_of
        self.start, self.close = scorer.start, scorer.close

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        """Return the scores of one task's episodes; each number is also in `parts`, under the reward's name."""
        if self.needs_answer and task.answer is None:
            detail = f"task {task.id} has no answer; name its column with answer_column"
            return [Unscored(kind="no answer", detail=detail)] * len(trajectories)
        found = await self.scorer.scores(trajectories, self._row_of(task))
        return [replace(one, parts={self.name: one.value}) if isinstance(one, Scored) else one for one in found]


class QuickScorer:
    """A rule that cannot hang, called directly in this process."""

    def __init__(self, rule: Callable[[str, Mapping[str, Any]], float]) -> None:
        self._rule = rule

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def scores(self, played: Sequence[Trajectory], row: Mapping[str, Any]) -> list[Scored | Unscored]:
        try:
            return [Scored(value=self._rule(one.response, row)) for one in played]
        except NoReference as error:
            return [Unscored(kind="no answer", detail=str(error))] * len(played)


Scorer = QuickScorer | ScorerPool | CodeScorer
"""Scores episodes of one row. `start` reports errors of the set-up early."""


class FailuresValued:
    """A `RewardFunction` that gives `value` to replies that make the inner one fail."""

    def __init__(self, reward: LiveReward, value: float) -> None:
        self.reward, self._value = reward, value
        self.start, self.close = reward.start, reward.close

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        scores, worth = await self.reward(task, trajectories), self._value
        return [
            Scored(value=worth, parts={f"failed: {one.kind}": worth}, failure=one.kind, detail=one.detail)
            if isinstance(one, Unscored) and one.kind in CAUSED_BY_REPLIES
            else one
            for one in scores
        ]


class CombinedReward:
    """A `RewardFunction` that is the weighted sum of others. `parts` holds their scores before weighting. Functions
    that ask for the scores of the other parts come last, and do not see each other's."""

    def __init__(self, parts: Mapping[str, LiveReward], weights: Mapping[str, float]) -> None:
        self._parts, self._weights = parts, weights

    async def start(self) -> None:
        await asyncio.gather(*(reward.start() for reward in self._parts.values()))

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        reading = {name for name, reward in self._parts.items() if await _reads_parts(reward)}
        scores: list[dict[str, Scored | Unscored]] = [{} for _ in trajectories]
        for last in (False, True):
            played = [
                replace(
                    one, reward_parts={name: part.value for name, part in known.items() if isinstance(part, Scored)}
                )
                for one, known in zip(trajectories, scores, strict=True)
            ]
            names = [name for name in self._parts if (name in reading) is last]
            columns = await asyncio.gather(*(self._parts[name](task, played) for name in names))
            for known, row in zip(scores, zip(*columns, strict=True), strict=bool(names)):
                known.update(zip(names, row, strict=True))
        return [combined(known, self._weights) for known in scores]

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for reward in self._parts.values():
                stack.push_async_callback(reward.close)


async def _reads_parts(part: LiveReward) -> bool:
    """Whether it is a function that asks for the scores of the other parts of a combination."""
    inner = part.reward if isinstance(part, FailuresValued) else part
    pool = inner.scorer if isinstance(inner, Reward) else None
    return isinstance(pool, ScorerPool) and "reward_parts" in await pool.wants()


def combined(scores: Mapping[str, Scored | Unscored], weights: Mapping[str, float]) -> Scored | Unscored:
    """Return the weighted sum of one reply's scores, without parts that do not apply to it; none if another part has
    none, for it would be another reward."""
    numbers = {name: score for name, score in scores.items() if isinstance(score, Scored)}
    for name, score in scores.items():
        if isinstance(score, Unscored) and not (numbers and score.kind == DOES_NOT_APPLY):
            return Unscored(kind=f"{name}: {score.kind}", detail=score.detail)
    values = {name: score.value for name, score in numbers.items()}
    total = exact_sum(weights[name] * value for name, value in values.items())
    if not is_finite(total):
        return Unscored(kind="not finite", detail=f"the weighted sum of {values} is {total}")
    return Scored(
        value=total,
        parts=values,
        turn_weight=sum(weights[name] * score.turn_weight for name, score in numbers.items()),
        only_turns=all(score.only_turns for name, score in numbers.items() if weights[name]),
        failure=", ".join(f"{name}: {score.failure}" for name, score in numbers.items() if score.failure),
        detail="; ".join(f"{name}: {score.detail}" for name, score in numbers.items() if score.detail),
    )


def make_reward(
    config: RewardConfig, log: Path | None = None, model: LiveReward | None = None, outages: Outages | None = None
) -> LiveReward:
    """Return the reward that `config` names. Nothing is started before `start` or the first score. `log` receives the
    output of a function's scorers; `model` is the reward model. With `outages`, replies wait for their server."""
    if config.kind != "combined":
        return make_scorer(config, log, model, outages)
    parts = {name: make_scorer(part, log, model, outages) for name, part in config.parts.items()}
    return CombinedReward(parts, {name: part.weight for name, part in config.parts.items()})


def make_scorer(
    config: ScorerConfig, log: Path | None = None, model: LiveReward | None = None, outages: Outages | None = None
) -> LiveReward:
    """Return the reward of one scorer, with the score that it gives replies that make it fail, if any."""
    reward, value = _scorer(config, log, model, outages), config.worth_of_failures
    return reward if value is None else FailuresValued(reward, value)


def _scorer(config: ScorerConfig, log: Path | None, model: LiveReward | None, outages: Outages | None) -> LiveReward:
    if config.remote:
        return RemoteReward(config.remote, client_of(config, config.remote, outages, {NULLS_HEADER: "null"}))
    if config.judge:
        judge = PairwiseJudge if config.judge.mode == "pairwise" else PointwiseJudge
        return judge(config.judge, client_of(config, config.judge, outages))
    if config.kind == "environment":
        return EnvironmentReward()
    if config.kind == "model":
        if model is None:
            raise ConfigError("reward.kind: model scores tokens sampled by an engine, and there is no engine here")
        return model
    if config.kind == "code":
        return Reward("code", CodeScorer(config.code), lambda task: task.row, needs_answer=False)
    if config.kind == "function":
        name = str(config.function).partition(":")[2]
        return Reward(name, _pool(config, str(config.function), log), lambda task: task.row, needs_answer=False)
    quick = QUICK.get(config.kind)
    scorer = QuickScorer(quick) if quick else _pool(config, IN_WORKERS[config.kind], log, RULE_BYTES)
    row = {"pattern": config.pattern, "tags": config.tags, "text_after": config.text_after}
    return Reward(config.kind, scorer, lambda task: row | {"answer": task.answer}, config.needs_answer)


def _pool(config: ScorerConfig, function: str, log: Path | None, memory_bytes: int = 0) -> ScorerPool:
    """Make a pool of a user's function without a memory limit: its libraries may reserve addresses by the 100 GiB."""
    given: dict[str, Any] = {"arguments": config.arguments, "memory_bytes": memory_bytes}
    return ScorerPool(function, config.workers, config.timeout_seconds, log, config.variables, **given)
