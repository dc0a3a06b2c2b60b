"""The reward of an environment is what it gave the turns; nothing is made up where it gave nothing."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf.reward.reward import EnvironmentReward
from rlhf.types import EpisodeStatus, Scored, Segment, Task, Trajectory, Turn, Unscored

TASK = Task(id="t", messages=())


def trajectory(*rewards: float | None, status: EpisodeStatus = EpisodeStatus.TERMINATED) -> Trajectory:
    """An episode of a segment a turn."""
    segments = [
        Segment(
            token_ids=np.zeros(2, np.int32), kinds=np.array([0, 1], np.int8),
            behaviour_logprobs=np.zeros(2, np.float32), versions=np.zeros(2, np.int32),
            turns=(Turn(start=1, stop=2, reward=reward),),
        )
        for reward in rewards
    ]  # fmt: skip
    return Trajectory(task=TASK, segments=tuple(segments), status=status)


async def test_the_rewards_of_all_turns_and_segments_are_added_up_and_named() -> None:
    [score] = await EnvironmentReward()(TASK, [trajectory(0.5, None, 1.0)])
    assert score == Scored(value=1.5, parts={"environment": 1.5}, turn_weight=1.0, only_turns=True)


async def test_ten_tenths_are_one() -> None:
    [score] = await EnvironmentReward()(TASK, [trajectory(*[0.1] * 10)])
    assert score == Scored(value=1.0, parts={"environment": 1.0}, turn_weight=1.0, only_turns=True)


@pytest.mark.parametrize(("status", "kind"), [(EpisodeStatus.TERMINATED, Unscored), (EpisodeStatus.TRUNCATED, Scored)])
async def test_an_end_without_any_reward_has_no_number_and_a_cut_before_any_has_earned_nothing(
    status: EpisodeStatus, kind: type
) -> None:
    [score] = await EnvironmentReward()(TASK, [trajectory(None, None, status=status)])
    assert isinstance(score, kind)
    assert getattr(score, "value", 0.0) == 0.0
