"""Real servers on loopback, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from rlhf.cluster.loop_thread import BackgroundLoop
from rlhf.env.config import IsolationKind
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.server.app import EnvironmentServerSettings
from rlhf.env.server.worker import EnvironmentServer
from tests.pace import scaled

HERE = "tests.env.environments:"


@contextlib.contextmanager
def served(
    name: str,
    isolation: IsolationKind = "thread",
    arguments: dict[str, Any] | None = None,
    module: str = HERE,
    **settings: Any,
) -> Iterator[str]:
    """Yield the URL of a server of the environment `name`, which ends with the block."""
    loop, server = BackgroundLoop("a server"), EnvironmentServer(loopback=True)
    factory, chosen = Factory(name=module + name, arguments=arguments or {}), EnvironmentServerSettings(**settings)
    try:
        yield loop.wait_for("the server's start", server.start(factory, isolation, chosen), scaled(60))
    finally:
        loop.wait_for("the server's end", server.close(), scaled(20))
        loop.stop()


def quick(seconds: float) -> Deadlines:
    return Deadlines(reset_seconds=seconds, step_seconds=seconds)


class Talk:
    """A raw client of the WebSocket: frames out, frames in."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def ask(self, frame: object) -> dict[str, Any]:
        await self.socket.send(frame if isinstance(frame, str) else json.dumps(frame))
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        return json.loads(await asyncio.wait_for(self.socket.recv(), scaled(20)))

    async def reset(self, **data: Any) -> dict[str, Any]:
        return await self.ask({"type": "reset", "data": data})

    async def step(self, text: str, **metadata: Any) -> dict[str, Any]:
        return await self.ask({"type": "step", "data": {"text": text, **({"metadata": metadata} if metadata else {})}})

    def kill(self) -> None:
        self.socket.transport.abort()


@contextlib.asynccontextmanager
async def talking(url: str, query: str = "", **options: Any) -> AsyncIterator[Talk]:
    async with connect(f"{url.replace('http', 'ws')}/ws{query}", proxy=None, compression=None, **options) as socket:
        yield Talk(socket)


async def active(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{url}/metadata")).json()["extras"]["active_sessions"]


async def comes_to(url: str, sessions: int, seconds: float = 20) -> bool:
    """Whether the server has so many sessions before the deadline."""
    deadline = time.monotonic() + seconds
    while await active(url) != sessions:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True
