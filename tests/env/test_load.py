"""A thousand sessions on one server, and thousands of clients that are killed."""

from __future__ import annotations

import asyncio

import pytest

from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.hosting.isolation import Deadlines
from rlhf.types import Message, Task
from tests.env.serving import active, comes_to, served, talking

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SESSIONS, CYCLES, AT_ONCE = 1000, 5000, 100
PATIENT = Patience(deadlines=Deadlines(open_seconds=200, reset_seconds=200, step_seconds=200))


async def test_a_thousand_sessions_at_once_hear_only_their_own_nonce():
    with served("Nonce") as url:
        environments = await EnvironmentPool.connect([Address(url=url)], PATIENT)
        everyone = asyncio.Barrier(SESSIONS)

        async def play(name: str) -> list[str]:
            environment = await environments.open(name)
            await environment.reset(Task(id=name, messages=()), seed=0)
            await everyone.wait()
            steps = [await environment.step(Message(role="assistant", content=name)) for _ in range(5)]
            await environment.close()
            return [step.messages[0].content for step in steps]

        names = [f"session-{number}" for number in range(SESSIONS)]
        played = await asyncio.gather(*map(play, names))
        assert played == [[f"{name} {step} {name}" for step in range(1, 6)] for name in names]
        assert await comes_to(url, 0)


async def test_five_thousand_clients_that_connect_and_are_killed_leave_nothing():
    with served("Guess", max_sessions=2 * AT_ONCE) as url:

        async def connect_and_die() -> None:
            async with talking(url, open_timeout=60) as talk:
                await talk.reset()
                talk.kill()

        for _ in range(CYCLES // AT_ONCE):
            await asyncio.gather(*(connect_and_die() for _ in range(AT_ONCE)))
            assert await comes_to(url, 0)
        assert await active(url) == 0
