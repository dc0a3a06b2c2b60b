"""Client for the conformance checks of a live server: raw frames and requests, each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from rlhf.env.client.remote import MESSAGE_BYTES, Address
from rlhf.env.wire import Json

ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.1


class Failing(Exception):
    """A failed check; the message explains it."""


class NotApplicable(Exception):
    """Why a check does not apply to this server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test: its address, its metadata, and a valid action."""

    address: Address
    http: httpx.AsyncClient
    metadata: Json
    action: Json
    extras: Json = field(default_factory=dict)

    async def get(self, path: str) -> Any:
        return await self.request("GET", path, 200)

    async def request(self, method: str, path: str, *statuses: int, **options: Any) -> Any:
        """The JSON of an answer whose status is one of `statuses`. Raises `Failing`."""
        try:
            answer = await self.http.request(method, path, **options)
            said = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Failing(f"{method} {path}: {type(error).__name__}: {error}") from None
        if statuses and answer.status_code not in statuses:
            raise Failing(f"{method} {path} answers with HTTP status {answer.status_code}")
        return said

    async def rpc(self, method: str, **params: Any) -> Json:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        said: Json = await self.request("POST", "/mcp", 200, json=body)
        return said

    async def active(self) -> int:
        """Number of open sessions on the server; only servers of this library report it."""
        metadata = await self.get("/metadata")
        count: int = metadata["extras"]["active_sessions"]
        return count

    @asynccontextmanager
    async def conversation(self, query: str = "") -> AsyncIterator[Conversation]:
        """A WebSocket that is closed at the end, unless it was killed. Raises `Failing`."""
        try:
            socket = await asyncio.wait_for(self._connect(query), ANSWER_SECONDS)
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise Failing(f"no WebSocket at /ws: {type(error).__name__}: {error}") from None
        async with socket:
            yield Conversation(socket, self.action)

    async def _connect(self, query: str) -> ClientConnection:
        return await connect(
            self.address.socket_url(query),
            additional_headers=self.address.headers,
            compression=None,
            max_size=MESSAGE_BYTES,
            close_timeout=1.0,
            proxy=None,
        )


class Conversation:
    """One WebSocket. Each receive returns a frame within a deadline, or raises `Failing`."""

    def __init__(self, socket: ClientConnection, action: Json) -> None:
        self._socket, self._action = socket, action

    async def ask(self, frame: Json | str) -> Json:
        with contextlib.suppress(ConnectionClosed):  # if the server refused, its frame says why: read it
            await self._socket.send(frame if isinstance(frame, str) else json.dumps(frame))
        return await self.hear()

    async def hear(self) -> Json:
        try:
            said = json.loads(await asyncio.wait_for(self._socket.recv(), ANSWER_SECONDS))
        except TimeoutError:
            raise Failing(f"no answer within {ANSWER_SECONDS:g} s") from None
        except (ConnectionClosed, ValueError) as error:
            raise Failing(f"no frame: {type(error).__name__}: {error}") from None
        if not isinstance(said, dict) or not isinstance(said.get("data"), dict):
            raise Failing(f"no frame: {said!r:.100}")
        return said

    async def reset(self, seed: int) -> Json:
        """The data of the first observation. Raises `Failing`."""
        return observed(await self.ask({"type": "reset", "data": {"seed": seed}}))

    async def step(self) -> Json:
        return observed(await self.raw_step())

    async def raw_step(self, metadata: Mapping[str, Any] | None = None) -> Json:
        return await self.ask(self.step_frame(metadata))

    def step_frame(self, metadata: Mapping[str, Any] | None = None) -> Json:
        extra = {"metadata": dict(metadata)} if metadata else {}
        return {"type": "step", "data": self._action | extra}

    async def send(self, frame: Json) -> None:
        await self._socket.send(json.dumps(frame))

    def kill(self) -> None:
        """Drop the connection as a killed process does."""
        self._socket.transport.abort()


def observed(frame: Json) -> Json:
    """The data of an observation. Raises `Failing` for anything else."""
    data: Json = frame["data"]
    if frame.get("type") != "observation":
        raise Failing(f"{data.get('code')}: {data.get('message')!s:.200}")
    if unknown := set(data) - {"observation", "reward", "done", "metadata"}:
        raise Failing(f"an answer has keys that the wire has not: {', '.join(sorted(unknown))}")
    if not isinstance(data.get("observation"), dict) or not isinstance(data.get("done"), bool):
        raise Failing("an answer without `observation` and `done`")
    return data


def example(schema: Mapping[str, Any]) -> Json:
    """A minimal action that satisfies a schema."""
    properties = schema.get("properties") or {}
    return {name: smallest(properties.get(name) or {}) for name in schema.get("required") or ()}


def smallest(schema: Mapping[str, Any]) -> Any:
    """The smallest value that satisfies a simple schema."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    by_type = {"integer": schema.get("minimum", 0), "number": schema.get("minimum", 0.0), "boolean": False}
    return (by_type | {"array": [], "object": {}}).get(schema.get("type", "string"), "1")
