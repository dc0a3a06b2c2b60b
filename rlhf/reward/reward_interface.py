"""Interface of a reward function with `start` and `close`, and its score of one text."""

from __future__ import annotations

from typing import Protocol

from rlhf.protocols import RewardFunction
from rlhf.types import EpisodeStatus, Scored, Task, Trajectory, Unscored


class LiveReward(RewardFunction, Protocol):
    """A recipe's reward: `start` reports errors of the set-up early; `close` ends what was started."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


async def score_reply(reward: LiveReward, task: Task, reply: str) -> Scored | Unscored:
    played = Trajectory(task=task, segments=(), status=EpisodeStatus.TERMINATED, response=reply)
    (score,) = await reward(task, [played])
    return score
