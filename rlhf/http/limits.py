"""Requests that are too long are refused before they are read."""

from __future__ import annotations

import json

from rlhf.http.binding import App, Receive, Scope, Send


class BodyLimit:
    """An ASGI application whose HTTP requests have at most `most` bytes, and say so: 413 and 411 otherwise."""

    def __init__(self, app: App, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers") or ())
        if scope["type"] == "http" and b"transfer-encoding" in headers:
            await _refuse(send, 411, "the length of the body must be stated")
        elif scope["type"] == "http" and int(headers.get(b"content-length", b"0")) > self._most:
            await _refuse(send, 413, f"the body is longer than {self._most} bytes")
        else:
            await self._app(scope, receive, send)


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message, "type": "invalid", "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
