"""Sessions share one EnvPool and never one another's answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlhf.env.adapters.envpool import EnvPoolEnvironment
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.types import Message, Observation, Task
from tests.env.hosted import hosted

pytestmark = pytest.mark.ecosystem

NOTHING = Task(id="0", messages=())


def text_of(observation: Observation) -> str:
    return observation.messages[0].content


async def walk(session: EnvPoolEnvironment, moves: str) -> Observation:
    for move in moves:
        observation = await session.step(Message(role="assistant", content=move))
    return observation


def lake() -> EnvPoolEnvironment:
    text = "tests.env.adapters.test_envpool:square"
    return EnvPoolEnvironment("FrozenLake-v1", slots=8, actions=["l", "d", "r", "u"], text=text)


def square(seen: object) -> str:
    return f"square {seen}"


async def test_many_sessions_are_stepped_at_once_and_each_gets_its_own_answers() -> None:
    async def push(action: str) -> tuple[float, Observation]:
        session = EnvPoolEnvironment("CartPole-v1", slots=16, seed=3)
        last = await session.reset(NOTHING, seed=0)
        while not last.done:
            last = await session.step(Message(role="assistant", content=action))
        await session.close()
        return float(text_of(last).split()[1]), last

    ends = await asyncio.gather(*(push("01"[index % 2]) for index in range(64)))
    assert all(end.terminated and not end.truncated for _, end in ends)
    assert all((speed > 0) == bool(index % 2) for index, (speed, _) in enumerate(ends))


async def test_more_sessions_than_slots_are_hosted_and_wait_for_one() -> None:
    arguments = {"id": "CartPole-v1", "slots": 4, "seed": 5}
    module = "rlhf.env.adapters.envpool:"
    async with hosted("EnvPoolEnvironment", module=module, arguments=arguments, turn=30, sessions=16) as environments:

        async def play() -> Observation:
            session = await environments.open("s")
            last = await session.reset(NOTHING, seed=0)
            while not last.done:
                last = await session.step(Message(role="assistant", content="1"))
            await session.close()
            return last

        assert all(end.terminated for end in await asyncio.gather(*(play() for _ in range(16))))


async def test_the_time_limit_truncates() -> None:
    session = EnvPoolEnvironment("CartPole-v1", slots=2, options={"max_episode_steps": 6})
    await session.reset(NOTHING, seed=0)
    assert not (await walk(session, "01010")).done
    last = await walk(session, "1")
    assert (last.terminated, last.truncated) == (False, True)


async def test_an_abandoned_episode_leaves_a_slot_that_begins_anew() -> None:
    for _ in range(20):
        session = lake()
        assert text_of(await session.reset(NOTHING, seed=0)) == "square 0"
        assert text_of(await walk(session, "?")) == "Not understood. Answer with one of l d r u"
        await walk(session, "u")
        await session.close()
        await session.close()


async def test_without_a_free_slot_a_session_is_refused_after_its_deadline() -> None:
    settings: dict[str, Any] = {"slots": 1, "seconds": 0.2}
    first, second = (EnvPoolEnvironment("CartPole-v1", **settings) for _ in range(2))
    await first.reset(NOTHING, seed=0)
    with pytest.raises(EnvironmentFailed, match="refused: no free slot within"):
        await second.reset(NOTHING, seed=0)
    await first.close()
    await second.reset(NOTHING, seed=0)


async def test_an_environment_that_envpool_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="envpool has no environment NoSuch-v0"):
        EnvPoolEnvironment("NoSuch-v0")
