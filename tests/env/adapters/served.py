"""`rlhf serve env` as a process of its own, and sessions on it through our client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rlhf.env.client.remote import Address
from rlhf.env.client.servers import RemoteEnvironments
from rlhf.protocols import Environment
from rlhf.types import Message, Observation

ROOT = Path(__file__).parents[3]
COMMAND = "from rlhf.cli import main; main()"
START_SECONDS, STOP_SECONDS = 90, 20
T = TypeVar("T")


@contextlib.contextmanager
def serving(
    name: str, arguments: Mapping[str, Any] | None = None, *options: str, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The URL of a server of the class `name`, which is told to end with the block and does."""
    words = [sys.executable, "-W", "ignore", "-c", COMMAND, "serve", "env", name, "--port", "0", *options]
    words += ["--arguments", json.dumps(arguments or {})]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(variables or {})
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        try:
            yield _address(process, Path(output.name))
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _address(process: subprocess.Popen[bytes], output: Path) -> str:
    """Where the server says that it listens."""
    deadline, told = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < deadline:
        told = output.read_text()
        if found := re.search(r" at (http://\S+:\d+)", told):
            return found[1]
        assert process.poll() is None, told
        time.sleep(0.05)
    raise AssertionError(f"the server did not start within {START_SECONDS} s: {told}")


async def connected(url: str) -> RemoteEnvironments:
    return await RemoteEnvironments.connect(Address(url=url))


async def in_session(environments: RemoteEnvironments, play: Callable[[Environment], Awaitable[T]]) -> T:
    """What is played in a session of its own."""
    session = await environments.open("test")
    try:
        return await play(session)
    finally:
        await session.close()


async def side_by_side(limit: int, plays: list[Callable[[], Awaitable[T]]]) -> list[T]:
    """The outcomes of `plays`, of which `limit` run at once."""
    places = asyncio.Semaphore(limit)

    async def placed(play: Callable[[], Awaitable[T]]) -> T:
        async with places:
            return await play()

    return await asyncio.gather(*(placed(play) for play in plays))


async def say(session: Environment, text: str) -> Observation:
    return await session.step(Message(role="assistant", content=text))
