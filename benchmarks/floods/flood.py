"""Clients without a token, in a process of their own: `python -m benchmarks.floods.flood KIND PORT SECONDS`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

SLOW, FLOODERS = 300, 16
"""Connections of the slow flood, and of the others."""
PIECE = b"x" * 65536
BODY_BYTES = 60 * 2**20


async def slow(port: int, end: float) -> None:
    """A request that comes a byte at a time, and is begun again when it is cut off."""
    while time.monotonic() < end:
        async with connected(port) as (reader, writer):
            for byte in b"POST /reset HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()
                if reader.at_eof() or time.monotonic() > end:
                    break
                await asyncio.sleep(0.5)


async def headers(port: int, end: float) -> None:
    """Headers without end."""
    piece = b"a: b\r\n" * 5000
    while time.monotonic() < end:
        async with connected(port) as (_, writer):
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            while time.monotonic() < end:
                writer.write(piece)
                await writer.drain()


async def bodies(port: int, end: float) -> None:
    """Bodies of 60 MiB, to the path that is open and to one that is not."""
    head = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    while time.monotonic() < end:
        for path in (b"health", b"reset"):
            async with connected(port) as (_, writer):
                writer.write(head % (path, BODY_BYTES))
                for _ in range(BODY_BYTES // len(PIECE)):
                    writer.write(PIECE)
                    await writer.drain()


@contextlib.asynccontextmanager
async def connected(port: int) -> Any:
    """A connection, and whatever the server does to it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(OSError):
            yield reader, writer
    finally:
        writer.transport.abort()


KINDS: dict[str, tuple[Callable[[int, float], Coroutine[Any, Any, None]], int]] = {
    "slow": (slow, SLOW), "headers": (headers, FLOODERS), "bodies": (bodies, FLOODERS),
}  # fmt: skip


async def main(kind: str, port: int, seconds: float) -> None:
    client, count = KINDS[kind]
    end = time.monotonic() + seconds
    await asyncio.wait_for(asyncio.gather(*(client(port, end) for _ in range(count))), seconds + 10)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
