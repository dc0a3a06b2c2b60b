"""Sessions on environment servers: one server, or several that share the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Never, Self

import httpx

from rlhf.env.client.dialect import Dialect, dialect_of
from rlhf.env.client.remote import Address, AtCapacity, Broken, Patience, RemoteEnvironment
from rlhf.env.hosting.hosted import SlotEnvironment
from rlhf.env.wire import Json, Undecodable
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.http.client import client, send_request
from rlhf.protocols import Environment
from rlhf.untrusted_text import InvalidJson, escape_to_line, read_json

PROBE_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0
SKIP_SECONDS = 2.0
"""How long a server that is full or silent is skipped, and how long an outage lasts before it is reported."""


class RemoteServer:
    """One server, of this library or stock, and the pool's state of it. Made by `connect`."""

    def __init__(self, address: Address, dialect: Dialect, patience: Patience) -> None:
        self.address, self.spec = address, dialect.spec
        self.sessions, self.skipped_until = 0, 0.0
        self.failure: str | None = None  # why the server does not answer, as a session found
        self._dialect, self._patience = dialect, patience

    @classmethod
    async def connect(cls, address: Address, patience: Patience) -> Self:
        """Wait until the server answers, and query its spec. Raises `EnvironmentFailed`."""
        seconds = patience.deadlines.open_seconds
        try:
            async with asyncio.timeout(seconds), probing_client(address) as http:
                while True:
                    try:
                        return cls(address, await fetch_dialect(http), patience)
                    except (httpx.TransportError, Broken):
                        await asyncio.sleep(FIRST_PAUSE_SECONDS)
        except (Undecodable, InvalidJson) as error:
            detail = f"this is not an environment server: {type(error).__name__}: {error}"
            raise EnvironmentFailed(address.url, "protocol", detail) from None
        except TimeoutError:
            raise EnvironmentFailed(address.url, "lost", f"no answer within {seconds:g} s") from None

    async def try_open(self) -> Environment:
        """Try once to open a session. Raises `Broken`, `AtCapacity`, `EnvironmentFailed`."""
        environment = RemoteEnvironment(self.address, self._dialect, self._patience)

        def release() -> None:
            self.sessions -= 1
            self.failure = self.failure or environment.cut_off

        self.sessions += 1  # counted while it opens, so that concurrent opens are spread
        async with AsyncExitStack() as failing:
            failing.callback(release)
            failing.push_async_callback(environment.close)
            try:
                async with asyncio.timeout(self._patience.deadlines.open_seconds / self._patience.tries):
                    await environment.open()
            except TimeoutError:
                raise Broken(f"{self.address.url} is silent") from None
            failing.pop_all()
        return SlotEnvironment(environment, release)

    async def answers(self) -> bool:
        """Whether the server answers now, and serves the same environment as before."""
        try:
            async with asyncio.timeout(PROBE_SECONDS), probing_client(self.address) as http:
                return (await fetch_dialect(http)).spec == self.spec
        except (TimeoutError, httpx.HTTPError, Broken, Undecodable, InvalidJson, EnvironmentFailed):
            return False


class EnvironmentPool:
    """The `Environments` of servers that all serve the same environment. A session stays on its server. A server that
    is gone gets no session until it answers again; `tell` receives a line at both events. Call `close` at the end."""

    def __init__(
        self,
        servers: Sequence[RemoteServer],
        open_seconds: float = 60.0,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.spec = servers[0].spec
        if different := [server for server in servers if server.spec != self.spec]:
            urls = f"{servers[0].address.url} and {different[0].address.url}"
            raise ConfigError(f"{urls} serve different environments; all servers of a run must serve the same one")
        self._servers, self._open_seconds, self._tell = servers, open_seconds, tell
        self._asked: dict[RemoteServer, asyncio.Task[None]] = {}
        self._keeping: list[asyncio.Task[Never]] = []

    @classmethod
    async def connect(
        cls,
        addresses: Sequence[Address],
        patience: Patience | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> EnvironmentPool:
        """Wait for every server. Raises `EnvironmentFailed`, `ConfigError`."""
        patience = patience or Patience()
        servers = await asyncio.gather(*(RemoteServer.connect(address, patience) for address in addresses))
        return cls(servers, patience.deadlines.open_seconds, tell)

    async def open(self, session: str) -> Environment:
        """Open a session on the server with the fewest, as soon as one has capacity. Raises `EnvironmentFailed`:
        `refused` if none has in time, `lost` if none answers; and the error of a failed keeper."""
        kind, last, pause = "lost", "no answer", FIRST_PAUSE_SECONDS
        try:
            async with asyncio.timeout(self._open_seconds):
                while True:
                    for keeper in self._keeping:
                        if keeper.done():
                            keeper.result()
                    server = self._choose()
                    try:
                        environment = await server.try_open()
                        server.failure = None
                        return environment
                    except AtCapacity as error:
                        kind, last = "refused", str(error)
                    except Broken as error:
                        kind, last = "lost", str(error)
                        server.failure = last
                    server.skipped_until = time.monotonic() + SKIP_SECONDS
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except TimeoutError:
            waited = f"{session}: no server had capacity within {self._open_seconds:g} s: {last}"
            raise EnvironmentFailed(self.spec.name, kind, waited) from None

    def move(self, place: int, address: Address) -> None:
        self._servers[place].address = address

    def keep(self, keeper: Coroutine[Any, Any, Never]) -> None:
        """Run the keeper, which restarts servers, until `close`."""
        self._keeping.append(asyncio.create_task(keeper))

    async def close(self) -> None:
        """Stop asking for servers that are gone, and restarting them."""
        tasks = (*self._asked.values(), *self._keeping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _choose(self) -> RemoteServer:
        """Return the server with the fewest sessions, or whose skip ends first. Gone servers are polled."""
        now = time.monotonic()
        for server in self._servers:
            if server.failure is not None and server not in self._asked:
                self._asked[server] = asyncio.create_task(self._regain(server))
        here = [server for server in self._servers if server.failure is None] or self._servers
        if ready := [server for server in here if server.skipped_until <= now]:
            return min(ready, key=lambda server: server.sessions)
        return min(here, key=lambda server: server.skipped_until)

    async def _regain(self, server: RemoteServer) -> None:
        """Poll a server until it answers, then use it again. A short outage is not reported."""
        began, pause, told = time.monotonic(), FIRST_PAUSE_SECONDS, False
        while server.failure is not None and not await server.answers():
            if not told and time.monotonic() - began >= SKIP_SECONDS:
                told = True
                self._tell(
                    f"environment server {server.address.url} does not answer "
                    f"({escape_to_line(server.failure or '')}); its "
                    "episodes start again elsewhere"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        server.failure = None
        del self._asked[server]
        if told:
            seconds = time.monotonic() - began
            self._tell(f"environment server {server.address.url} answers again, after {seconds:.0f} s")


def probing_client(address: Address) -> httpx.AsyncClient:
    return client(base_url=address.url, headers=address.headers, timeout=PROBE_SECONDS, trust_env=False)


async def fetch_dialect(http: httpx.AsyncClient) -> Dialect:
    """Return the server's dialect. Raises `httpx.TransportError`, `Broken`, `Undecodable`, `InvalidJson`."""
    metadata, schema = await get_object(http, "/metadata"), await get_object(http, "/schema")
    return dialect_of(metadata, schema)


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
