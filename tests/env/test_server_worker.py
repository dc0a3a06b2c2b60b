"""The worker that serves environments for a run, without its cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.server.app import EnvironmentServerSettings
from rlhf.env.server.worker import EnvironmentServer
from rlhf.errors import ConfigError, EnvironmentFailed
from tests.fakes import TASK

pytestmark = pytest.mark.engine
QUICK = Patience(deadlines=Deadlines(open_seconds=5))


@asynccontextmanager
async def working(arguments: Mapping[str, Any], max_sessions: int = 8) -> AsyncIterator[str]:
    server = EnvironmentServer(loopback=True)
    factory = Factory(name="tests.env.environments:Guess", arguments=arguments)
    try:
        yield await server.start(
            factory, "thread", EnvironmentServerSettings(max_sessions=max_sessions, token="secret")
        )
    finally:
        await server.close()


async def test_it_serves_whoever_has_its_token_until_it_closes() -> None:
    async with working({"guesses": 2}, max_sessions=1) as url:
        pool = await EnvironmentPool.connect([Address(url=url, token="secret")], QUICK)
        session = await pool.open("s")
        assert not (await session.reset(TASK, seed=3)).done
        with pytest.raises(EnvironmentFailed, match="refused: s: no place"):
            await EnvironmentPool(  # of the same server, with less patience
                pool._servers, open_seconds=0.3
            ).open("s")
        with pytest.raises(EnvironmentFailed, match="refused"):
            await EnvironmentPool.connect([Address(url=url)], QUICK)
        await session.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)


async def test_an_environment_that_cannot_be_made_is_an_error_of_the_recipe() -> None:
    with pytest.raises(ConfigError, match=r"cannot be made with its arguments: TypeError.*colour"):
        async with working({"colour": "red"}):
            pass
