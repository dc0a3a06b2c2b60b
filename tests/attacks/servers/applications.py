"""All servers of the project in this process: their applications, and the environment server on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.testclient import TestClient

from rlhf.config import build
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.threads import ThreadIsolation
from rlhf.env.server.app import EnvironmentServerSettings, build_app, environment_uvicorn_config
from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import Access, HttpLimits
from rlhf.http.serving import listening
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.reward.server import RewardServerSettings, reward_app
from rlhf.rollout.endpoint.app import policy_app
from rlhf.rollout.endpoint.front import Front
from rlhf.rollout.endpoint.sessions import AgentSessions
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.server import make_app
from tests.pace import scaled
from tests.rollout.endpoint.serving import TOKENIZER, scripted
from tests.rollout.playing import policy


def environment() -> tuple[AccessMiddleware, Any]:
    isolation = ThreadIsolation(Factory(name="tests.env.environments:Adder", arguments={}), Deadlines())
    asyncio.run(isolation.start())
    return build_app(isolation, EnvironmentServerSettings(port=0)), None


def reward() -> tuple[AccessMiddleware, Any]:
    scoring: Any = make_reward(build(RewardConfig, {"kind": "exact"}))
    return reward_app(scoring, RewardServerSettings(name="exact")), scoring.start


def sandbox() -> tuple[AccessMiddleware, Any]:
    sandbox = Sandbox(queue=Queue(runs=1))
    return make_app(sandbox, None), sandbox.start


def endpoint() -> tuple[AccessMiddleware, Any]:
    engine: Any = scripted(*["said"] * 10_000)
    sessions = AgentSessions(capacity=1024)
    front = Front(sessions, lambda number: policy(engine, TOKENIZER), lambda *episode: None, lease_seconds=60.0)
    return policy_app(sessions, model="tiny", token=None, front=front), None


APPLICATIONS = {"environment": environment, "reward": reward, "sandbox": sandbox, "policy": endpoint}


@contextlib.contextmanager
def client_of(name: str) -> Iterator[TestClient]:
    """A client of one application; an exception in it is a 500."""
    app, start = APPLICATIONS[name]()
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        if start is not None:
            assert client.portal is not None
            client.portal.call(start)
        yield client


@contextlib.asynccontextmanager
async def environment_server(token: str | None = None, **limits: int) -> AsyncIterator[str]:
    isolation = ThreadIsolation(Factory(name="tests.env.environments:Adder", arguments={}), Deadlines())
    await isolation.start()
    settings = EnvironmentServerSettings(port=0, token=token, access=Access(limits=HttpLimits(**limits)))
    async with listening(environment_uvicorn_config(isolation, settings)) as url:
        yield url
    await isolation.stop()


async def status_of(url: str, sent: bytes, piece: bytes = b"", count: int = 0) -> int | None:
    """The status of the answer to raw bytes, after which `piece` is sent `count` times, or as often as the server takes
    it; None for a connection that was closed without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = b""
    try:
        async with asyncio.timeout(scaled(10)):
            with contextlib.suppress(ConnectionError):
                writer.write(sent)
                for _ in range(count):
                    writer.write(piece)
                    await writer.drain()
            with contextlib.suppress(ConnectionError):
                head = await reader.read(65536)
    finally:
        writer.transport.abort()
    return int(head.split(None, 2)[1]) if head.startswith(b"HTTP/1.1 ") else None
