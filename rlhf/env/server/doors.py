"""What stands before every route of a server: the token, and the size of a body."""

from __future__ import annotations

import hmac
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf.env.wire import Code, Json

OPEN_PATHS = frozenset({"/health"})
"""Answered without a token: whoever balances load has none, and learns nothing here."""


class TokenDoor:
    """Lets requests pass that bring `Authorization: Bearer TOKEN`, over HTTP and WebSocket."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._allowed(scope):
            await self._app(scope, receive, send)
        else:
            detail = {"message": "A bearer token is needed, and this is not it", "code": Code.SESSION_ERROR}
            await refuse(scope, receive, send, 401, detail | {"kind": "refused"})

    def _allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)


class SizeDoor:
    """Refuses HTTP bodies above a limit, announced or not, before they fill memory."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more and len(body) <= self._max_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > self._max_bytes:
            message_text = f"The body is longer than the {self._max_bytes:,} bytes that this server takes"
            await refuse(scope, receive, send, 413, {"message": message_text, "code": Code.VALIDATION_ERROR})
        else:
            await self._app(scope, replayed(body, receive), send)


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


async def refuse(scope: Scope, receive: Receive, send: Send, status: int, detail: Json) -> None:
    """An answer with an error; a WebSocket is refused before it is one."""
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    if scope["type"] == "websocket":
        await receive()
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
