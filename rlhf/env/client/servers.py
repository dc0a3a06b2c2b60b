"""Sessions on one environment server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import httpx

from rlhf.env.answers import Undecodable
from rlhf.env.client.dialect import Dialect, dialect_of
from rlhf.env.client.remote import Address, AtCapacity, Broken, Patience, RemoteEnvironment
from rlhf.env.wire import Json
from rlhf.errors import EnvironmentFailed
from rlhf.http.exchange import client, send_request
from rlhf.http.untrusted_text import InvalidJson, read_json
from rlhf.protocols import Environment

PROBE_SECONDS = 10.0
BUSY_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0


class RemoteEnvironments:
    """The `Environments` of one server, of this library or stock. Made by `connect`, which queries what it serves."""

    def __init__(self, address: Address, dialect: Dialect, patience: Patience) -> None:
        self.address, self.spec = address, dialect.spec
        self._dialect, self._patience = dialect, patience

    @classmethod
    async def connect(cls, address: Address, patience: Patience | None = None) -> RemoteEnvironments:
        """Wait until the server answers, and query its spec. Raises `EnvironmentFailed`."""
        patience = patience or Patience()
        seconds = patience.deadlines.open_seconds
        try:
            async with asyncio.timeout(seconds):
                dialect = await ask_dialect(address)
        except TimeoutError:
            raise EnvironmentFailed(address.url, "lost", f"no answer within {seconds:g} s") from None
        return cls(address, dialect, patience)

    async def open(self, session: str) -> Environment:
        """A session, as soon as the server has capacity. Raises `EnvironmentFailed`: `refused` when there is none in
        time, `lost` when the server does not answer."""
        kind, last, pause = "lost", "no answer", BUSY_PAUSE_SECONDS
        seconds = self._patience.deadlines.open_seconds
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return await self.try_open()
                    except AtCapacity as busy:
                        kind, last = "refused", str(busy)
                    except Broken as broken:
                        kind, last = "lost", str(broken)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except TimeoutError:
            waited = f"{session}: no place within {seconds:g} s: {last}"
            raise EnvironmentFailed(self.spec.name, kind, waited) from None

    async def try_open(self) -> RemoteEnvironment:
        """One attempt to open a session. Raises `Broken`, `AtCapacity`, `EnvironmentFailed`."""
        environment = RemoteEnvironment(self.address, self._dialect, self._patience)
        async with AsyncExitStack() as failing:
            failing.push_async_callback(environment.close)
            try:
                async with asyncio.timeout(self._patience.deadlines.open_seconds / self._patience.tries):
                    await environment.open()
            except TimeoutError:
                raise Broken(f"{self.address.url} is silent") from None
            failing.pop_all()
        return environment


async def ask_dialect(address: Address) -> Dialect:
    """The server's dialect, as soon as it answers. Raises `EnvironmentFailed`."""
    async with client(base_url=address.url, headers=address.headers, timeout=PROBE_SECONDS, trust_env=False) as http:
        while True:
            try:
                metadata, schema = await get(http, "/metadata"), await get(http, "/schema")
                return dialect_of(metadata, schema)
            except (httpx.TransportError, Broken):
                await asyncio.sleep(BUSY_PAUSE_SECONDS)
            except (Undecodable, InvalidJson) as error:
                detail = f"this is no environment server: {type(error).__name__}: {error}"
                raise EnvironmentFailed(address.url, "protocol", detail) from None


async def get(http: httpx.AsyncClient, path: str) -> Json:
    """The JSON object at a path. Raises `Broken` for a temporary failure, `EnvironmentFailed` for a permanent one."""
    answer = await send_request(http, http.build_request("GET", path))
    if answer.status >= 500:
        raise Broken(f"{path}: HTTP status {answer.status}")
    if answer.status in (401, 403):
        raise EnvironmentFailed(str(http.base_url), "refused", f"the token is refused (HTTP {answer.status})")
    if answer.status != 200:
        raise Undecodable(f"{path} answers with HTTP status {answer.status}")
    said = read_json(answer.content)
    if not isinstance(said, dict):
        raise Undecodable(f"{path} answers with no object")
    return said
