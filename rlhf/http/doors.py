"""What stands before the routes of a server: the token, and the size of a body. Refusals are worded by the caller."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health"})
"""Answered without a token: whoever balances load has none, and learns nothing here."""
Refusal = Mapping[str, Any]
"""The JSON of an answer that refuses."""


class BearerToken:
    """Lets requests pass that bring `Authorization: Bearer TOKEN`, over HTTP and WebSocket; others get 401.

    `/health` is open; where it `tries_token` a wrong one is refused there too, for clients that ask it whether theirs
    is right.
    """

    def __init__(self, app: ASGIApp, token: str, refusal: Refusal, *, tries_token: bool = False) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()
        self._refusal, self._tries_token = refusal, tries_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        else:
            await refuse(scope, receive, send, 401, self._refusal)

    def _admits(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization")
        if scope["path"] in OPEN_PATHS and (given is None or not self._tries_token):
            return True
        return given is not None and hmac.compare_digest(given, self._expected)


class BodyLimit:
    """Refuses HTTP bodies of more than `most` bytes, announced or not, before they fill memory: 413, `too_long`.

    With `unannounced` a body whose length was not stated is refused unread: 411.
    """

    def __init__(self, app: ASGIApp, most: int, too_long: Refusal, *, unannounced: Refusal | None = None) -> None:
        self._app, self._most, self._too_long, self._unannounced = app, most, too_long, unannounced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._unannounced is not None and b"transfer-encoding" in dict(scope["headers"]):
            await refuse(scope, receive, send, 411, self._unannounced)
        else:
            await self._measured(scope, receive, send)

    async def _measured(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = bytearray(), True
        while more and len(body) <= self._most:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > self._most:
            await refuse(scope, receive, send, 413, self._too_long)
        else:
            await self._app(scope, replayed(bytes(body), receive), send)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body which was read already."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def refuse(scope: Scope, receive: Receive, send: Send, status: int, refusal: Refusal) -> None:
    """An answer with an error; a WebSocket is refused before it is one."""
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    if scope["type"] == "websocket":
        await receive()
    body = json.dumps(refusal).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
