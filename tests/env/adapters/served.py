"""`rlhf serve env` as a process of its own, and sessions on it through our client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from rlhf.env.client.remote import Address
from rlhf.env.client.servers import RemoteEnvironments
from rlhf.protocols import Environment
from rlhf.types import Message, Observation
from tests.commanded import commanded

T = TypeVar("T")


@contextmanager
def serving(name: str, arguments: Mapping[str, Any] | None = None, *options: str, **variables: str) -> Iterator[str]:
    """The URL of a server of the class `name`."""
    with commanded("env", name, "--arguments", json.dumps(arguments or {}), *options, **variables) as (url, _):
        yield url


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
