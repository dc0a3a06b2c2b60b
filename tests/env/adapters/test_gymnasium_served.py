"""Gymnasium through a server that is a process of its own: its own checker passes, and episodes end as they should."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from rlhf.env.adapters.blocking import BlockingEnvironment
from rlhf.protocols import Environment
from rlhf.types import Observation, Task
from tests.env.adapters.served import connected, in_session, say, serving
from tests.env.adapters.test_as_gymnasium import TASKS, checked, gymnasium_env
from tests.env.adapters.test_gymnasium import CARTPOLE, lean

pytestmark = pytest.mark.ecosystem

ADAPTER = "rlhf.env.adapters.gymnasium:GymnasiumEnvironment"
LAKE = {"id": "FrozenLake-v1", "options": {"is_slippery": False}, "actions": ["left", "down", "right", "up"]}
NOTHING = Task(id="0", messages=())
LIMIT = 30
POLE = {"id": "CartPole-v1", "bins": CARTPOLE, "options": {"max_episode_steps": LIMIT}}


@pytest.fixture(scope="module")
def lake() -> Iterator[str]:
    with serving(ADAPTER, LAKE) as url:
        yield url


@pytest.fixture(scope="module")
def pole() -> Iterator[str]:
    with serving(ADAPTER, POLE) as url:
        yield url


def remote(url: str) -> Any:
    """The served environment as Gymnasium's, every reset in a session of its own."""
    environments = asyncio.run(connected(url))
    return gymnasium_env(lambda: BlockingEnvironment(environments, uuid4().hex), TASKS)


@pytest.mark.parametrize("name", ["lake", "pole"])
def test_check_env_passes_on_the_remote_environment(name: str, request: pytest.FixtureRequest) -> None:
    env = remote(request.getfixturevalue(name))
    checked(env)
    env.close()


def test_the_optimal_path_over_the_remote_lake_terminates_with_its_reward(lake: str) -> None:
    env = remote(lake)
    assert env.reset(seed=0, options={"task": 2})[0] == "task 2\n\n0"
    steps = [env.step(move) for move in ("down", "down", "right", "right", "down", "right")]
    env.close()
    assert [seen for seen, *_ in steps] == ["4", "8", "9", "10", "14", "15"]
    assert [reward for _, reward, *_ in steps] == [0, 0, 0, 0, 0, 1]
    assert [(terminated, truncated) for _, _, terminated, truncated, _ in steps] == [(False, False)] * 5 + [
        (True, False)
    ]


async def balanced(session: Environment, clever: bool) -> list[Observation]:
    """An episode of a pole, pushed to where it leans, or always to the right."""
    observations = [await session.reset(NOTHING, seed=1)]
    while not observations[-1].done:
        observations.append(await say(session, lean(observations[-1].messages[0].content) if clever else "1"))
    return observations


async def played(url: str, clever: bool) -> list[Observation]:
    return await in_session(await connected(url), partial(balanced, clever=clever))


async def test_the_time_limit_of_the_remote_pole_truncates_and_shows_the_last_state(pole: str) -> None:
    episode = await played(pole, clever=True)
    assert len(episode) == LIMIT + 1
    assert (episode[-1].terminated, episode[-1].truncated, episode[-1].reward) == (False, True, 1.0)
    assert len(episode[-1].messages[0].content) == 4


async def test_the_fall_of_the_remote_pole_terminates(pole: str) -> None:
    episode = await played(pole, clever=False)
    assert len(episode) < LIMIT
    assert (episode[-1].terminated, episode[-1].truncated, episode[-1].reward) == (True, False, 1.0)


async def test_two_servers_play_the_same_episode_for_the_same_seed(pole: str) -> None:
    with serving(ADAPTER, POLE) as other:
        there = await played(other, clever=True)
    assert there == await played(pole, clever=True)
