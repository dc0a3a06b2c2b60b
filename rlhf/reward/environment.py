"""Reward by the environment: the sum of what it gave for each turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf.types import EpisodeStatus, Scored, Task, Trajectory, Unscored, exact_sum, finite_number, is_finite


class EnvironmentReward:
    """A `RewardFunction` without a scorer: the rewards are already in the turns."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        return [summed(trajectory) for trajectory in trajectories]


def summed(trajectory: Trajectory) -> Scored | Unscored:
    """Return the sum of the turns' rewards: without any, 0 if the episode was cut off, else no score. Its parts are the
    `reward_parts` of the last info."""
    rewards = [turn.reward for segment in trajectory.segments for turn in segment.turns if turn.reward is not None]
    if not rewards and trajectory.status is EpisodeStatus.TERMINATED:
        return Unscored(kind="no reward", detail="the environment ended the episode without a reward")
    value = exact_sum(rewards)
    if not is_finite(value):
        return Unscored(kind="not finite", detail=f"the sum of {len(rewards)} rewards overflows")
    told = trajectory.env_info[-1].get("reward_parts") if trajectory.env_info else None
    named = told.items() if isinstance(told, Mapping) else ()
    parts = {str(name): number for name, part in named if (number := finite_number(part)) is not None}
    return Scored(value=value, parts=parts | {"environment": value}, turn_weight=1.0, only_turns=True)
