"""Combine several rewards into a weighted sum with named parts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from rlhf.reward.reward_interface import LiveReward
from rlhf.types import Scored, Task, Trajectory, Unscored, exact_sum, is_finite


class CombinedReward:
    """A `RewardFunction` that is the weighted sum of others. `parts` holds their scores before weighting."""

    def __init__(self, parts: Mapping[str, LiveReward], weights: Mapping[str, float]) -> None:
        self._parts, self._weights = parts, weights

    async def start(self) -> None:
        await asyncio.gather(*(reward.start() for reward in self._parts.values()))

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        columns = await asyncio.gather(*(reward(task, trajectories) for reward in self._parts.values()))
        return [combined(dict(zip(self._parts, row, strict=True)), self._weights) for row in zip(*columns, strict=True)]

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for reward in self._parts.values():
                stack.push_async_callback(reward.close)


def combined(scores: Mapping[str, Scored | Unscored], weights: Mapping[str, float]) -> Scored | Unscored:
    """Return the weighted sum of one reply's scores. If one part has no score, neither has the sum: leaving the part
    out, or counting it as 0, would be a different reward."""
    for name, score in scores.items():
        if isinstance(score, Unscored):
            return Unscored(kind=f"{name}: {score.kind}", detail=score.detail)
    numbers = {name: score for name, score in scores.items() if isinstance(score, Scored)}
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
