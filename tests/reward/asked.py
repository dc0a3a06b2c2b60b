"""Groups of replies that are only text, for rewards to score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.reward.process import ScorerPool
from rlhf.reward.reward_interface import LiveReward
from rlhf.types import EpisodeStatus, Message, Scored, Task, Trajectory, Unscored

TASK = Task(id="t", messages=(Message(role="user", content="What is 6 times 7?"),), answer="42")


def replies(*texts: str, task: Task = TASK) -> list[Trajectory]:
    return [Trajectory(task=task, segments=(), status=EpisodeStatus.TERMINATED, response=text) for text in texts]


async def scored(reward: LiveReward, *texts: str, task: Task = TASK) -> list[Scored | Unscored]:
    try:
        return await reward(task, replies(*texts, task=task))
    finally:
        await reward.close()


async def score_text(pool: ScorerPool, text: str, row: Mapping[str, Any]) -> Scored | Unscored:
    (score,) = await pool.scores(replies(text), row)
    return score


def kinds(scores: list[Scored | Unscored]) -> list[str]:
    """The kind of every failure; a score is `scored`."""
    return [score.kind if isinstance(score, Unscored) else "scored" for score in scores]
