"""A proxy in front of a server that loses connections on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes both ways. `fate(n)` says what becomes of the n-th piece that the server sends:
    `pass`, `drop` (the connection ends before it arrives), or `swallow` (silence from then on)."""

    def __init__(self, url: str, fate: Callable[[int], str]) -> None:
        self._port, self._fate = urlsplit(url).port, fate
        self.pieces = 0
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(self._up(reader, server_writer))
        with contextlib.suppress(ConnectionError):
            await self._down(server_reader, writer)
        up.cancel()
        for one in (writer, server_writer):
            one.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.transport.abort()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent = False
        while data := await reader.read(65536):
            self.pieces += 1
            fate = "swallow" if silent else self._fate(self.pieces)
            if fate == "drop":
                return
            silent = fate == "swallow"
            if not silent:
                writer.write(data)


@contextlib.asynccontextmanager
async def proxied(url: str, fate: Callable[[int], str]) -> AsyncIterator[Proxy]:
    proxy = Proxy(url, fate)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
