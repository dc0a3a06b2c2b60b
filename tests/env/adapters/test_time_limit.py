"""A critic looks across CartPole's time limit and not across its fall: truncated is not terminated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlhf.models.tiny import byte_tokenizer
from rlhf.reward.environment import summed
from rlhf.trainer.batching.batch import build_batch
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.advantages import with_advantages
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Task, Ticket, Trajectory
from tests.env.hosted import hosted
from tests.rollout.playing import ScriptedEngine, play_alone, policy, rules

pytestmark = pytest.mark.ecosystem

ADAPTER = "rlhf.env.adapters.gymnasium:"
BINS = [(-2.4, 2.4), (-2.5, 2.5), (-0.21, 0.21), (-2.5, 2.5)]
TASK = Task(id="0", messages=())
WORTH = 7.0
"""What the critic says of whatever comes after the last token."""


async def pushed_right(max_steps: int) -> Trajectory:
    """CartPole pushed to the right until it falls, or until its time is up."""
    tokenizer = byte_tokenizer()
    arguments = {"id": "CartPole-v1", "bins": BINS, "options": {"max_episode_steps": max_steps}}
    engine = ScriptedEngine(*[tokenizer.encode("1")] * 50)
    async with hosted("GymnasiumEnvironment", module=ADAPTER, arguments=arguments, turn=20) as environments:
        environment = await environments.open("s")
        played = await play_alone(TASK, policy(engine, tokenizer), environment, seed=1, rules=rules(max_turns=50))
        await environment.close()
    assert isinstance(played, Trajectory)
    return played


def targets(played: Trajectory) -> np.ndarray:
    """Return the undiscounted targets of every token, for a critic that gives 0 until the end."""
    score = summed(played)
    assert isinstance(score, Scored)
    group = Group(ticket=Ticket(ordinal=0, version=0), task=TASK, samples=(Sample(trajectory=played, score=score),))
    trainer = TrainerConfig(advantage={"estimator": "gae", "gamma": 1.0, "lam": 1.0}, critic={})
    batch = build_batch([group])
    batch = replace(batch, values=np.zeros(batch.tokens, np.float32))
    batch = replace(batch, last_values=np.array([WORTH], np.float32))
    filled, _ = with_advantages(batch, trainer, 0.0)
    (returns,) = filled.per_sample(filled.returns)
    return returns


async def test_the_time_limit_is_not_the_end_of_what_can_be_earned() -> None:
    played = await pushed_right(max_steps=3)
    assert played.status is EpisodeStatus.TRUNCATED
    assert targets(played)[[0, -1]].tolist() == [3 + WORTH, 1 + WORTH]


async def test_the_fall_is() -> None:
    played = await pushed_right(max_steps=500)
    turns = [turn for segment in played.segments for turn in segment.turns]
    assert played.status is EpisodeStatus.TERMINATED
    assert targets(played)[[0, -1]].tolist() == [len(turns), 1]
