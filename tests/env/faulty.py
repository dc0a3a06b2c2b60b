"""A proxy in front of a server that breaks its connections on purpose, in every way that a network or a server can."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from urllib.parse import urlsplit

FATES = ("drop", "swallow", "error", "slow")
"""Fates of an answer besides `pass`; see `Proxy`."""
SLOW_SECONDS = 0.25
"""About 50 times the time of an answer here."""
INTERNAL_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
CLOSED_WITH_1011 = b"\x88\x02\x03\xf3"
RAISED = {"type": "error", "data": {"message": "a fault", "code": "EXECUTION_ERROR"}}
Fate = Callable[[int], str]


class Proxy:
    """Passes bytes both ways. `fate(n)` decides about the n-th piece that the server sends, of all connections:
    `pass`, `drop` (the connection ends before it arrives), `swallow` (silence from then on), `error` (HTTP status 500
    where it is an answer to HTTP, a close with status 1011 where it is a frame), `raise` (an error frame of OpenEnv in
    its place), or `slow`. With `refuses(n)` the n-th connection is reset before a byte passes.

    `applied` counts the fates other than `pass` by the kind of the piece: see `kind_of`.
    """

    def __init__(self, url: str, fate: Fate, refuses: Callable[[int], bool] = lambda connection: False) -> None:
        self._port, self._fate, self._refuses = urlsplit(url).port, fate, refuses
        self.pieces = self.connections = 0
        self.applied: Counter[tuple[str, str]] = Counter()
        self.url = ""
        self._handling: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a connection in a task that is kept: asyncio itself would let the garbage collector take it."""
        task = asyncio.create_task(self._handle(reader, writer))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def stop(self) -> None:
        for task in self._handling:
            task.cancel()
        await asyncio.gather(*self._handling, return_exceptions=True)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refuses(self.connections):
            self.applied["refuse", "connection"] += 1
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(self._up(reader, server_writer))
        try:
            await self._down(server_reader, writer)
        except ConnectionError:
            pass
        finally:
            up.cancel()
            for side in (writer, server_writer):
                side.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes to the server, and end its side too when the client leaves in any way."""
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.pieces += 1
            fate = self._fate(self.pieces)
            if fate != "pass":
                self.applied[fate, kind_of(data)] += 1
            if fate == "swallow":
                await _silence(reader)
            if fate == "slow":
                await asyncio.sleep(SLOW_SECONDS)
            if fate in ("pass", "slow"):
                writer.write(data)
            elif fate == "raise":
                writer.write(frame(RAISED))
            else:
                await _end(writer, data if fate == "error" else b"")
                return


async def _silence(reader: asyncio.StreamReader) -> None:
    """Hear the server, and say nothing, until it or the client goes."""
    while await reader.read(65536):
        pass


async def _end(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send an error in place of `data`, if there is any, before the connection ends."""
    if data:
        writer.write(INTERNAL_ERROR if data.startswith(b"HTTP/") else CLOSED_WITH_1011)
        await writer.drain()
        await asyncio.sleep(0.01)  # an abort would take it back


def kind_of(data: bytes) -> str:
    """Return the kind of a piece: a frame with an `observation`, another `frame` of text, or anything else (`other`),
    for instance the page /schema, which names observations too."""
    if data[:1] != b"\x81":
        return "other"
    return "observation" if b'"observation"' in data else "frame"


def frame(data: object) -> bytes:
    """Return a text frame of a server's WebSocket, of less than 126 bytes."""
    text = json.dumps(data).encode()
    return bytes([0x81, len(text)]) + text


def seeded(fates: Sequence[str], rate: float, seed: int = 0) -> Fate:
    """One of `fates` for so many of all calls, each decided by its number."""

    def fate(call: int) -> str:
        draw = random.Random(f"{seed} {call}").random()
        return fates[int(draw / rate * len(fates))] if draw < rate else "pass"

    return fate


@contextlib.asynccontextmanager
async def proxied(
    url: str, fate: Fate, refuses: Callable[[int], bool] = lambda connection: False
) -> AsyncIterator[Proxy]:
    proxy = Proxy(url, fate, refuses)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
