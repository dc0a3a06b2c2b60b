"""EnvPool's environments are played from their seed, each session by itself."""

from __future__ import annotations

import asyncio

import pytest

from rlhf.env.adapters.envpool import EnvPoolEnvironment
from rlhf.errors import ConfigError
from rlhf.types import Message, Observation, Task
from tests.env.hosted import hosted

pytestmark = pytest.mark.ecosystem
NOTHING = Task(id="0", messages=())


def walk(session: EnvPoolEnvironment, moves: str) -> Observation:
    for move in moves:
        observation = session.step(Message(role="assistant", content=move))
    return observation


def square(seen: object) -> str:
    return f"square {seen}"


async def test_concurrent_sessions_with_the_same_seed_play_the_same_episode() -> None:
    module, arguments = "rlhf.env.adapters.envpool:", {"id": "CartPole-v1"}
    async with hosted("EnvPoolEnvironment", module=module, arguments=arguments, turn=30, sessions=8) as environments:

        async def play(seed: int) -> list[Observation]:
            session = await environments.open("s")
            episode = [await session.reset(NOTHING, seed=seed)]
            while not episode[-1].done:
                episode.append(await session.step(Message(role="assistant", content="1")))
            await session.close()
            return episode

        played = await asyncio.gather(*(play(index % 2) for index in range(8)))
    assert played == [played[0], played[1]] * 4
    assert played[0] != played[1]
    assert all(episode[-1].terminated and not episode[-1].truncated for episode in played)


def test_the_time_limit_truncates() -> None:
    session = EnvPoolEnvironment("CartPole-v1", options={"max_episode_steps": 6})
    session.reset(NOTHING, seed=0)
    assert not walk(session, "01010").done
    last = walk(session, "1")
    assert (last.terminated, last.truncated) == (False, True)
    session.close()


def test_actions_and_observations_have_names() -> None:
    text = "tests.env.adapters.test_envpool:square"
    session = EnvPoolEnvironment("FrozenLake-v1", actions=["l", "d", "r", "u"], text=text)
    assert session.reset(NOTHING, seed=0).messages[0].content == "square 0"
    assert walk(session, "?").messages[0].content == "That is not an action. Answer with one of l d r u"
    session.close()


def test_an_environment_that_envpool_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="envpool has no environment NoSuch-v0"):
        EnvPoolEnvironment("NoSuch-v0")
