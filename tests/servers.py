"""Real HTTP servers on loopback that answer as they are told, and break as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import Access
from rlhf.http.serving import uvicorn_config

DROP, HANG = "drop", "hang"


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Reply = tuple[int, Any] | str | bytes
"""Status and JSON; `DROP` or `HANG`; or the bytes of the whole answer."""
Script = Callable[[Asked], Reply | Awaitable[Reply]]


@dataclass
class Server:
    """What was asked of a server, and the most requests that it had at once."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    inside: int = 0
    most_inside: int = 0

    def posts(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Server]:
    """A server that answers every request with what `script` says of it; `GET` is 404 unless the script takes it."""
    server = Server()
    ends: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await _answer(server, script, await _read(reader), writer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**26)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def _answer(server: Server, script: Script, asked: Asked, writer: asyncio.StreamWriter) -> None:
    server.asked.append(asked)
    server.inside += 1
    server.most_inside = max(server.most_inside, server.inside)
    try:
        reply = script(asked)
        reply = reply if isinstance(reply, tuple | str | bytes) else await reply
        if reply == HANG:
            await asyncio.sleep(60)
        if reply == DROP:
            return
        writer.write(reply if isinstance(reply, bytes) else response(*reply))  # type: ignore[misc]
        await writer.drain()
    finally:
        server.inside -= 1


def response(status: int, body: Any, **headers: str) -> bytes:
    """The bytes of an answer; the connection closes after it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    method, path, _ = head[0].split()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


@contextlib.contextmanager
def running(app: Any, port: int = 0) -> Iterator[str]:
    """An ASGI application in uvicorn, in a thread of its own; gives its address. With a `port` it is back there."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    config = (
        uvicorn_config(app, Access()) if isinstance(app, AccessMiddleware) else uvicorn.Config(app, log_level="error")
    )
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
