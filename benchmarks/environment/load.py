"""A client that costs little, so that the server is what is measured: fixed frames out, frames counted in."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time

RESET = json.dumps({"type": "reset", "data": {"seed": 1}}).encode()
MOVE = "a move of some length"
OBSERVATION = b'"observation"'
ANSWER_SECONDS = 60.0


def frame(payload: bytes) -> bytes:
    """A WebSocket text frame of a client, its mask all zeros."""
    assert len(payload) < 126
    return struct.pack("!BB", 0x81, 0x80 | len(payload)) + bytes(4) + payload


class Session:
    """One WebSocket to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Session:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(f"no WebSocket: {head[:100]!r}")
        session = cls(reader, writer)
        await session.ask(frame(RESET))
        return session

    async def ask(self, sent: bytes) -> None:
        """Send a frame and wait for an observation. Raises `ConnectionError` for anything else."""
        self._writer.write(sent)
        opcode, payload = await self._hear()
        while opcode == 0x9:  # a ping
            self._writer.write(struct.pack("!BB", 0x8A, 0x80 | len(payload)) + bytes(4) + payload)
            opcode, payload = await self._hear()
        if OBSERVATION not in payload:
            raise ConnectionError(f"no observation: {payload[:200]!r}")

    async def _hear(self) -> tuple[int, bytes]:
        first, length = await self._reader.readexactly(2)
        if length == 126:
            (length,) = struct.unpack("!H", await self._reader.readexactly(2))
        return first & 0x0F, await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.transport.abort()


async def steps_per_second(port: int, field: str, sessions: int, seconds: float) -> float:
    """Steps of `sessions` that each ask as soon as they are answered, over about `seconds`; `field` is the action's."""
    opened = await asyncio.gather(*(Session.open(port) for _ in range(sessions)))
    step, began = frame(json.dumps({"type": "step", "data": {field: MOVE}}).encode()), time.perf_counter()
    end = began + seconds

    async def play(session: Session) -> int:
        steps = 0
        while time.perf_counter() < end:
            await session.ask(step)
            steps += 1
        return steps

    total = sum(await asyncio.wait_for(asyncio.gather(*map(play, opened)), seconds + ANSWER_SECONDS))
    rate = total / (time.perf_counter() - began)
    for session in opened:
        session.close()
    return rate


def measure(port: int, field: str, sessions: int, seconds: float) -> float:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return asyncio.run(steps_per_second(port, field, sessions, seconds))
