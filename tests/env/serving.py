"""Real servers on loopback, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.processes import ProcessIsolation
from rlhf.env.hosting.threads import ThreadIsolation
from rlhf.env.server.app import EnvironmentServerSettings, build_app, environment_uvicorn_config
from tests.pace import scaled

HERE = "tests.env.environments:"


@contextlib.contextmanager
def served(
    name: str,
    isolation: str = "thread",
    arguments: dict[str, Any] | None = None,
    module: str = HERE,
    **settings: Any,
) -> Iterator[str]:
    """Yield the URL of a server of the environment `name`, which ends with the block."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        chosen = EnvironmentServerSettings(port=listener.getsockname()[1], **settings)
        server = Running(Factory(name=module + name, arguments=arguments or {}), isolation, chosen, listener)
        server.start()
        try:
            yield f"http://127.0.0.1:{chosen.port}"
        finally:
            server.stop()


class Running:
    """A server's event loop in a thread."""

    def __init__(
        self, factory: Factory, isolation: str, settings: EnvironmentServerSettings, listener: socket.socket
    ) -> None:
        self._factory, self._isolation, self._settings, self._listener = factory, isolation, settings, listener
        self._server: uvicorn.Server | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + scaled(60)
        while not (self._server and self._server.started):
            if self._error is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start") from self._error
            time.sleep(0.01)

    def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            self._error = error

    async def _serve(self) -> None:
        kind = {"thread": ThreadIsolation, "process": ProcessIsolation}[self._isolation]
        isolation = kind(self._factory, self._settings.deadlines)
        await isolation.start()
        try:
            self._server = uvicorn.Server(
                environment_uvicorn_config(build_app(isolation, self._settings), self._settings)
            )
            await self._server.serve(sockets=[self._listener])
        finally:
            await isolation.stop()


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
