"""The score of a reply that made its scorer fail, where the recipe sets a number."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.reward.live import LiveReward
from rlhf.types import CAUSED_BY_REPLIES, Scored, Task, Trajectory, Unscored


class FailuresValued:
    """A `RewardFunction` that gives `value` to replies that make another one fail."""

    def __init__(self, reward: LiveReward, value: float) -> None:
        self._reward, self._value = reward, value

    async def start(self) -> None:
        await self._reward.start()

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        return [self._valued(score) for score in await self._reward(task, trajectories)]

    async def close(self) -> None:
        await self._reward.close()

    def _valued(self, score: Scored | Unscored) -> Scored | Unscored:
        if isinstance(score, Scored) or score.kind not in CAUSED_BY_REPLIES:
            return score
        parts = {f"failed: {score.kind}": self._value}
        return Scored(value=self._value, parts=parts, failure=score.kind, detail=score.detail)
