"""Sessions on environment servers: one server, or several that share the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

import httpx

from rlhf.env.client.dialect import Dialect, dialect_of
from rlhf.env.client.remote import Address, AtCapacity, Broken, Patience, RemoteEnvironment
from rlhf.env.hosting.hosted import SlotEnvironment
from rlhf.env.wire import Json, Undecodable
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.http.client import client, send_request
from rlhf.http.untrusted_text import InvalidJson, read_json
from rlhf.protocols import Environment

PROBE_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0
SKIP_SECONDS = 2.0
"""How long a server that is full, or does not answer, is skipped while others have capacity."""


class RemoteServer:
    """One server, of this library or stock, and the pool's state of it. Made by `connect`."""

    def __init__(self, address: Address, dialect: Dialect, patience: Patience) -> None:
        self.address, self.spec = address, dialect.spec
        self.sessions, self.skipped_until = 0, 0.0
        self._dialect, self._patience = dialect, patience

    @classmethod
    async def connect(cls, address: Address, patience: Patience) -> Self:
        """Wait until the server answers, and query its spec. Raises `EnvironmentFailed`."""
        seconds = patience.deadlines.open_seconds
        try:
            async with asyncio.timeout(seconds):
                return cls(address, await query_dialect(address), patience)
        except TimeoutError:
            raise EnvironmentFailed(address.url, "lost", f"no answer within {seconds:g} s") from None

    async def try_open(self) -> Environment:
        """Try once to open a session. Raises `Broken`, `AtCapacity`, `EnvironmentFailed`."""
        environment = RemoteEnvironment(self.address, self._dialect, self._patience)
        self.sessions += 1  # counted while it opens, so that concurrent opens are spread
        async with AsyncExitStack() as failing:
            failing.callback(self._release)
            failing.push_async_callback(environment.close)
            try:
                async with asyncio.timeout(self._patience.deadlines.open_seconds / self._patience.tries):
                    await environment.open()
            except TimeoutError:
                raise Broken(f"{self.address.url} is silent") from None
            failing.pop_all()
        return SlotEnvironment(environment, self._release)

    def _release(self) -> None:
        self.sessions -= 1


class EnvironmentPool:
    """The `Environments` of servers that all serve the same environment. A session stays on its server."""

    def __init__(self, servers: Sequence[RemoteServer], open_seconds: float = 60.0) -> None:
        self.spec = servers[0].spec
        if different := [server for server in servers if server.spec != self.spec]:
            urls = f"{servers[0].address.url} and {different[0].address.url}"
            raise ConfigError(f"{urls} serve different environments; all servers of a pool must serve the same one")
        self._servers, self._open_seconds = servers, open_seconds

    @classmethod
    async def connect(cls, addresses: Sequence[Address], patience: Patience | None = None) -> EnvironmentPool:
        """Wait for every server. Raises `EnvironmentFailed`, `ConfigError`."""
        patience = patience or Patience()
        servers = await asyncio.gather(*(RemoteServer.connect(address, patience) for address in addresses))
        return cls(servers, patience.deadlines.open_seconds)

    async def open(self, session: str) -> Environment:
        """Open a session on the server with the fewest sessions, as soon as one has capacity. Raises
        `EnvironmentFailed`: `refused` when no server has capacity in time, `lost` when no server answers."""
        kind, last, pause = "lost", "no answer", FIRST_PAUSE_SECONDS
        try:
            async with asyncio.timeout(self._open_seconds):
                while True:
                    server = self._choose()
                    try:
                        return await server.try_open()
                    except (AtCapacity, Broken) as error:
                        server.skipped_until = time.monotonic() + SKIP_SECONDS
                        kind, last = "refused" if isinstance(error, AtCapacity) else "lost", str(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except TimeoutError:
            waited = f"{session}: no place on any server within {self._open_seconds:g} s: {last}"
            raise EnvironmentFailed(self.spec.name, kind, waited) from None

    def _choose(self) -> RemoteServer:
        """Return the server with the fewest sessions that is not skipped, or the one whose skip ends first."""
        now = time.monotonic()
        ready = [server for server in self._servers if server.skipped_until <= now]
        if ready:
            return min(ready, key=lambda server: server.sessions)
        return min(self._servers, key=lambda server: server.skipped_until)


async def query_dialect(address: Address) -> Dialect:
    """Return the server's dialect, as soon as it answers. Raises `EnvironmentFailed`."""
    async with client(base_url=address.url, headers=address.headers, timeout=PROBE_SECONDS, trust_env=False) as http:
        while True:
            try:
                metadata, schema = await get_object(http, "/metadata"), await get_object(http, "/schema")
                return dialect_of(metadata, schema)
            except (httpx.TransportError, Broken):
                await asyncio.sleep(FIRST_PAUSE_SECONDS)
            except (Undecodable, InvalidJson) as error:
                detail = f"this is not an environment server: {type(error).__name__}: {error}"
                raise EnvironmentFailed(address.url, "protocol", detail) from None


async def get_object(http: httpx.AsyncClient, path: str) -> Json:
    """Return the JSON object at a path. Raises `Broken` for a temporary failure, else `EnvironmentFailed`."""
    answer = await send_request(http, http.build_request("GET", path))
    if answer.status_code >= 500:
        raise Broken(f"{path}: HTTP status {answer.status_code}")
    if answer.status_code in (401, 403):
        raise EnvironmentFailed(str(http.base_url), "refused", f"the token is refused (HTTP {answer.status_code})")
    if answer.status_code != 200:
        raise Undecodable(f"{path} answers with HTTP status {answer.status_code}")
    content = read_json(answer.content)
    if not isinstance(content, dict):
        raise Undecodable(f"{path} does not answer with an object")
    return content
