"""Sessions share one EnvPool and never one another's answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rlhf.env.adapters.envpool import EnvPoolEnvironments
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task

pytestmark = pytest.mark.ecosystem

NOTHING = Task(id="0", messages=())


def said(observation: Observation) -> str:
    return observation.messages[0].content


async def walk(session: Environment, moves: str) -> Observation:
    for move in moves:
        observation = await session.step(Message(role="assistant", content=move))
    return observation


@pytest.fixture
async def lake() -> AsyncIterator[EnvPoolEnvironments]:
    environments = EnvPoolEnvironments(
        "FrozenLake-v1", slots=8, actions=["l", "d", "r", "u"], text="tests.env.adapters.test_envpool:square"
    )
    yield environments
    environments.stop()


def square(seen: object) -> str:
    return f"square {seen}"


async def test_many_sessions_are_stepped_at_once_and_each_gets_its_own_answers() -> None:
    poles = EnvPoolEnvironments("CartPole-v1", slots=16, seed=3)

    async def push(action: str) -> tuple[float, Observation]:
        session = await poles.open("s")
        last = await session.reset(NOTHING, seed=0)
        while not last.done:
            last = await session.step(Message(role="assistant", content=action))
        await session.close()
        return float(said(last).split()[1]), last

    ends = await asyncio.gather(*(push("01"[index % 2]) for index in range(64)))
    poles.stop()
    assert all(end.terminated and not end.truncated for _, end in ends)
    assert all((speed > 0) == bool(index % 2) for index, (speed, _) in enumerate(ends))


async def test_the_time_limit_truncates() -> None:
    poles = EnvPoolEnvironments("CartPole-v1", slots=2, options={"max_episode_steps": 6})
    session = await poles.open("s")
    await session.reset(NOTHING, seed=0)
    assert not (await walk(session, "01010")).done
    last = await walk(session, "1")
    assert (last.terminated, last.truncated) == (False, True)
    poles.stop()


async def test_an_abandoned_episode_leaves_a_slot_that_begins_anew(lake: EnvPoolEnvironments) -> None:
    for _ in range(20):
        session = await lake.open("s")
        assert said(await session.reset(NOTHING, seed=0)) == "square 0"
        await walk(session, "u")
        await session.close()
        await session.close()


async def test_a_reply_that_is_no_action_is_answered_and_nothing_moves(lake: EnvPoolEnvironments) -> None:
    session = await lake.open("s")
    await session.reset(NOTHING, seed=0)
    assert said(await walk(session, "?")) == "Not understood. Answer with one of l d r u"
    await session.close()


async def test_without_a_free_slot_a_session_is_refused_after_its_deadline() -> None:
    environments = EnvPoolEnvironments("CartPole-v1", slots=1, seconds=0.2)
    first = await environments.open("first")
    with pytest.raises(EnvironmentFailed, match="refused: no free slot within"):
        await environments.open("second")
    await first.close()
    await (await environments.open("second")).close()
    environments.stop()


async def test_an_environment_that_envpool_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="envpool has no environment NoSuch-v0"):
        EnvPoolEnvironments("NoSuch-v0")
