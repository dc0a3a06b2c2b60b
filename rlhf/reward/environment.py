"""The reward of an environment: what it gave the turns of an episode, added up."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.types import EpisodeStatus, Scored, Task, Trajectory, Unscored

NAME = "environment"


class EnvironmentReward:
    """A `RewardFunction` that asks nobody: the numbers are in the turns already."""

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        return [summed(trajectory) for trajectory in trajectories]


def summed(trajectory: Trajectory) -> Scored | Unscored:
    """The sum of the turns' rewards. An episode that was cut off before it was given any has earned 0; one that the
    environment ended without a word on its worth has no number."""
    rewards = [turn.reward for segment in trajectory.segments for turn in segment.turns if turn.reward is not None]
    if not rewards and trajectory.status is EpisodeStatus.TERMINATED:
        return Unscored(kind="no reward", detail="the environment ended the episode and gave it no reward")
    value = float(sum(rewards))
    return Scored(value=value, parts={NAME: value}, turn_weight=1.0, only_turns=True)
