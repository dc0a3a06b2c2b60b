"""Environment servers that a run starts on its cluster, over a real Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from rlhf.cluster.watch import while_alive
from rlhf.cluster.worker import Cluster
from rlhf.controller.build import started_cluster
from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.starting import started_environments
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment, Environments
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import environment_roles
from rlhf.runs.view import PlainView
from rlhf.types import Message, Task
from tests.commanded import ROOT
from tests.pace import scaled

pytestmark = pytest.mark.engine


def recipe(environment: str, **settings: object) -> Recipe:
    served = {
        "environment": f"tests.env.environments:{environment}",
        "servers": 2,
        "turn_timeout_seconds": 5,
    } | settings
    data, reward = {"train": {"seeds": 8}}, {"kind": "environment"}
    return recipe_from({"model": {"tiny": {}}, "data": data, "reward": reward, "environment": served}).recipe


@asynccontextmanager
async def running(
    chosen: Recipe, logs: Path, tell: Callable[[str], None]
) -> AsyncIterator[tuple[Cluster, EnvironmentPool]]:
    async with started_cluster(chosen.cluster, environment_roles(chosen), logs, PlainView(StringIO())) as cluster:
        assert chosen.environment is not None
        async with started_environments(chosen.environment, cluster, alone=True, tell=tell) as environments:
            assert isinstance(environments, EnvironmentPool)
            yield cluster, environments


@pytest.fixture(autouse=True)
def ours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)


def addresses(environments: EnvironmentPool) -> Sequence[str]:
    return [server.address.url for server in environments._servers]


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def process_at(url: str) -> psutil.Process:
    """Who listens there."""
    port = urlsplit(url).port
    [pid] = {one.pid for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.laddr.port == port}
    return psutil.Process(pid)


async def test_sessions_are_spread_and_another_server_starts_where_one_dies(tmp_path: Path) -> None:
    told: list[str] = []
    async with running(recipe("Nonce"), tmp_path, told.append) as (cluster, environments):
        urls = addresses(environments)
        assert len({urlsplit(url).port for url in urls}) == 2
        assert {urlsplit(url).hostname for url in urls} == {"127.0.0.1"}
        sessions = await asyncio.gather(*(played(environments, f"s{n}") for n in range(8)))
        assert [server.sessions for server in environments._servers] == [4, 4]
        for url in urls:
            assert httpx.get(f"{url}/metadata", trust_env=False).status_code == 401

        async def work() -> None:
            process_at(urls[0]).kill()
            while addresses(environments)[0] == urls[0]:
                await asyncio.sleep(0.05)
            ended = await asyncio.gather(*(session.step(say("x")) for session in sessions), return_exceptions=True)
            assert [type(one) for one in ended].count(EnvironmentFailed) == 4
            assert {one.kind for one in ended if isinstance(one, EnvironmentFailed)} == {"lost"}
            await asyncio.gather(*(session.close() for session in sessions))
            again = await asyncio.gather(*(played(environments, f"t{n}") for n in range(8)))
            while environments._servers[0].sessions == 0:  # it was asked whether it answers
                again.append(await played(environments, f"t{len(again)}"))
            await asyncio.gather(*(session.close() for session in again))

        await asyncio.wait_for(while_alive(cluster, work()), scaled(60))
        assert told[0] == "environment-0 died: killed by SIGKILL; starting a replacement"
        urls = addresses(environments)
    for url in urls:  # both have ended with the cluster
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", trust_env=False)


async def played(environments: Environments, name: str) -> Environment:
    """A session that has heard only its own name."""
    session = await environments.open(name)
    await session.reset(Task(id=name, messages=()), seed=0)
    answers = [(await session.step(say("x"))).messages[0].content for _ in range(3)]
    assert answers == [f"{name} {n} x" for n in (1, 2, 3)]
    return session
