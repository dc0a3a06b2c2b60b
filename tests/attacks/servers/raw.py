"""A client without manners: bytes out, bytes in, and servers in a process of their own to send them to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.pace import scaled

AT_ONCE = 16
ANSWER_SECONDS = 20.0
"""Far more than the second after which the attacked servers give a client up; a program may wait for others."""
SILENCE = b"(nothing, and the connection stays open)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """Servers that run: the port of each, their process, and what they wrote to stderr."""

    ports: dict[str, int]
    process: psutil.Process
    errors: Path

    @property
    def log(self) -> str:
        return self.errors.read_text()

    @property
    def resident_bytes(self) -> int:
        found: int = self.process.memory_info().rss
        return found


@contextlib.contextmanager
def attacked(
    folder: Path, servers: Sequence[str], *, token: str | None = None, limits: dict[str, Any] | None = None
) -> Iterator[Attacked]:
    """These servers, for as long as the block."""
    told = json.dumps({"servers": list(servers), "token": token, "limits": limits or {}})
    errors = folder / "stderr"
    with errors.open("w") as log:
        command = [sys.executable, "-m", "tests.attacks.servers.at_once", told]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdin
        assert process.stdout
        line = process.stdout.readline()
        assert line, errors.read_text()
        yield Attacked(ports=json.loads(line), process=psutil.Process(process.pid), errors=errors)
        process.stdin.close()
        assert process.wait(scaled(30)) == 0, errors.read_text()
    finally:
        process.kill()
        process.wait()


async def answer_to(port: int, sent: bytes) -> bytes:
    """All that comes back until the connection is closed or one answer is whole; `SILENCE` where nothing does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = bytearray()
    try:
        async with asyncio.timeout(scaled(ANSWER_SECONDS)):
            with contextlib.suppress(ConnectionError):
                writer.write(sent)
                while not whole(heard) and (more := await reader.read(65536)):
                    heard += more
    except TimeoutError:
        return bytes(heard) or SILENCE
    finally:
        writer.transport.abort()
    return bytes(heard)


def whole(heard: bytes | bytearray) -> bool:
    """Whether there is an answer with all of its body."""
    head, blank, body = bytes(heard).partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return bool(blank) and (b"chunked" not in head.lower() or body.endswith(b"0\r\n\r\n"))


def status_of(heard: bytes) -> int | None:
    """Of an HTTP answer; None for a connection that was closed without one."""
    assert heard != SILENCE, "a client waits for ever"
    return int(heard.split(None, 2)[1]) if heard.startswith(b"HTTP/1.1 ") else None


async def answers_to(port: int, requests: Sequence[bytes]) -> list[bytes]:
    """One for each request, some of them asked at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(request: bytes) -> bytes:
        async with places:
            return await answer_to(port, request)

    return await asyncio.gather(*map(ask, requests))


def frame(payload: bytes, *, opcode: int = 1, fin: bool = True) -> bytes:
    """A WebSocket frame of a client, its mask all zeros."""
    length = len(payload)
    small = bytes([0x80 | length]) if length < 126 else bytes([0x80 | 126]) + length.to_bytes(2)
    size = small if length < 2**16 else bytes([0x80 | 127]) + length.to_bytes(8)
    return bytes([(0x80 if fin else 0) | opcode]) + size + bytes(4) + payload
