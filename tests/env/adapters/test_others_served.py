"""Episodes of EnvPool, GEM, SkyRL-gym and MCP tools through servers that are processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf.env.client.servers import RemoteEnvironments
from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task, ToolCall
from tests.env.adapters.served import connected, in_session, say, serving, side_by_side
from tests.env.adapters.test_gem import GUESSES, directly
from tests.servers import running

NOTHING = Task(id="0", messages=())
ecosystem = pytest.mark.ecosystem


@pytest.fixture(scope="module")
def poles() -> Iterator[str]:
    arguments = {"id": "CartPole-v1", "slots": 8, "seed": 3, "options": {"max_episode_steps": 20}}
    with serving("rlhf.env.adapters.envpool:EnvPoolEnvironment", arguments) as url:
        yield url


async def pushed(environments: RemoteEnvironments, pushes: str) -> list[Observation]:
    """An episode of a pole that is pushed as `pushes` says, again and again."""

    async def play(session: Environment) -> list[Observation]:
        heard = [await session.reset(NOTHING, seed=0)]
        while not heard[-1].done:
            heard.append(await say(session, pushes[len(heard) % len(pushes)]))
        return heard

    return await in_session(environments, play)


@ecosystem
async def test_more_sessions_than_slots_play_over_one_envpool_and_each_hears_its_own(poles: str) -> None:
    environments = await connected(poles)
    plays = [lambda push=push: pushed(environments, push) for push in "01" * 16]
    episodes = await side_by_side(32, plays)
    speeds = [float(episode[-1].messages[0].content.split()[1]) for episode in episodes]
    assert [speed > 0 for speed in speeds] == [False, True] * 16
    assert all(episode[-1].terminated and len(episode) > 5 for episode in episodes)


@ecosystem
async def test_envpool_s_time_limit_truncates_through_the_server(poles: str) -> None:
    episode = await pushed(await connected(poles), "01")
    assert (len(episode), episode[-1].terminated, episode[-1].truncated) == (21, False, True)


@ecosystem
async def test_gem_through_a_server_is_gem_turn_by_turn() -> None:
    async def played(seed: int) -> list[tuple[str, float, bool, bool]]:
        async def play(session: Environment) -> list[Observation]:
            await session.reset(NOTHING, seed=seed)
            heard: list[Observation] = []
            while not heard or not (heard[-1].done or len(heard) == len(GUESSES)):
                heard.append(await say(session, GUESSES[len(heard)]))
            return heard

        heard = await in_session(environments, play)
        return [(one.messages[0].content, one.reward or 0.0, one.terminated, one.truncated) for one in heard]

    with serving("rlhf.env.adapters.gem:GemEnvironment", {"id": "game:GuessTheNumber-v0-easy"}) as url:
        environments = await connected(url)
        turns = await asyncio.gather(*(played(seed) for seed in range(16)))
    assert turns == [directly(seed) for seed in range(16)]


@ecosystem
async def test_skyrl_gym_through_a_server_takes_its_turns_and_gives_its_rewards() -> None:
    task = Task(id="0", messages=(Message(role="user", content="2 + 2?"),), answer="4", row={"max_turns": 2})

    async def play(session: Environment) -> list[Observation]:
        return [await session.reset(task, seed=0), await say(session, "#### 5"), await say(session, "#### 4")]

    with serving("rlhf.env.adapters.skyrl_gym:SkyrlGymEnvironment", {"id": "gsm8k_multi_turn"}) as url:
        first, wrong, right = await in_session(await connected(url), play)
    assert first.messages == task.messages
    assert [(one.reward, one.terminated) for one in (wrong, right)] == [(0.1, False), (1.0, True)]


@pytest.mark.engine
async def test_tools_of_an_mcp_server_are_called_through_our_server() -> None:
    from tests.env.adapters.test_mcp_tools import QUESTION, server

    call = ToolCall(id="c7", name="add", arguments={"a": 20, "b": 22})

    async def play(session: Environment) -> tuple[Observation, Observation]:
        await session.reset(QUESTION, seed=0)
        heard = await session.step(Message(role="assistant", content="", tool_calls=(call,)))
        return heard, await say(session, heard.messages[0].content)

    with running(server.streamable_http_app()) as mcp:
        arguments: dict[str, Any] = {"url": f"{mcp}/mcp", "score": "rlhf.reward.rules:exact", "only": ["add"]}
        with serving("rlhf.env.adapters.mcp_tools:McpToolsEnvironment", arguments) as url:
            environments = await connected(url)
            heard, end = await in_session(environments, play)
    assert [tool.name for tool in environments.spec.tools] == ["add"]
    assert heard.messages == (Message(role="tool", content="42", tool_call_id="c7"),)
    assert (end.reward, end.terminated) == (1.0, True)
