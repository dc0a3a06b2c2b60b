"""Middleware that checks every request before the routes of a server: host name, origin, token, content type, size."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from rlhf.errors import LOG
from rlhf.http.binding import LOOPBACK, Access, may_be_asked_as, server_names
from rlhf.tracing import continued
from rlhf.untrusted_text import escape_to_line

OPEN = ("GET", "/health")
"""Answered without a token, for load balancers; a wrong token is refused here too, for clients that check theirs."""
LOGGED, LEFT = 1000, 499
"""How many different refusals are logged; the status where the client has left."""
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
RefusalJson = Callable[[int, str], Mapping[str, Any]]
"""Makes the JSON body of a refusal, in the server's format, from its status and a sentence."""


class HttpRefused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class AccessMiddleware:
    """ASGI middleware for `app`, which listens on `host`. An HTTP or WebSocket request must name this server, come from
    no other origin, have the `token` if there is one, and bring JSON of a bounded size in a bounded time. The body is
    read here, so that no route sees a request that fails."""

    def __init__(
        self, app: ASGIApp, refusal: RefusalJson, access: Access, *, host: str = LOOPBACK, token: str | None = None
    ) -> None:
        self._app, self._refusal, self._limits = app, refusal, access.limits
        self._names = server_names(host, access.names)
        self._token = None if token is None else token.encode()
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers, send = dict(scope["headers"]), self._logging(scope, send)
        try:
            self._check(scope, headers)
            if scope["type"] == "http" and scope["method"] in WITH_BODY:
                receive = await self._body(scope, headers, receive)
        except ClientDisconnect:
            return
        except HttpRefused as refused:
            await self._refuse(refused, scope, receive, send)
            return
        name = f"{scope.get('method', 'WebSocket')} {scope['path']}"
        with continued(name, headers.get(b"traceparent", b"").decode("latin-1")):
            await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Check host name, origin and token. Raises `HttpRefused`."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            raise HttpRefused(400, "a request must have exactly one Host header")
        # Starlette's TrustedHostMiddleware takes a fixed list; a server on 0.0.0.0 is also called by its addresses.
        host, address = hosts[0].decode("latin-1").lower(), (scope.get("server") or ("",))[0]
        if not may_be_asked_as(host, self._names, address):
            raise HttpRefused(421, f"this server is not called {host!r:.100}; if it is, start it with --name")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            raise HttpRefused(403, "pages of other origins are refused")
        given, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        if given is None and key is not None:  # the way of Anthropic's clients
            given = b"bearer " + key
        if self._token is None or (given is None and (scope.get("method"), scope["path"]) == OPEN):
            return
        scheme, _, token = (given or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise HttpRefused(401, "a valid bearer token is required")

    async def _body(self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive) -> Receive:
        """Check and read the body, and return a `receive` that repeats it. Raises `HttpRefused`, `ClientDisconnect`."""
        limits = self._limits
        has_body = b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > 0
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if has_body and kind != b"application/json":
            raise HttpRefused(415, "the body's Content-Type must be application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for piece in Request(scope, receive).stream():
                    body += piece
                    if len(body) > limits.body_bytes:
                        raise HttpRefused(413, f"the body is longer than {limits.body_bytes} bytes")
        except TimeoutError:
            raise HttpRefused(408, f"the body was not complete within {limits.body_seconds:g} s") from None
        return replayed(bytes(body), receive)

    def _logging(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that logs the first `LOGGED` different refusals once, so that no flood fills the disk."""
        status = 403  # of a WebSocket that is closed before it is accepted

        async def send_and_log(message: Message) -> None:
            nonlocal status
            status = message.get("status", 0 if message["type"] == "websocket.accept" else status)
            why = message.get("body") or message.get("reason", "").encode()
            if message["type"] in ("http.response.body", "websocket.close") and status >= 400 and status != LEFT:
                asked = f"{scope.get('method', 'WebSocket')} {scope['path']:.100}"
                line = escape_to_line(f"refused: {asked}: {status} {why[:500].decode(errors='replace')}")
                if line not in self._logged and len(self._logged) < LOGGED:
                    self._logged.add(line)
                    LOG.warning(line)
            await send(message)

        return send_and_log

    async def _refuse(self, refused: HttpRefused, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the refusal as the answer; a WebSocket is refused with 403 before its handshake."""
        if scope["type"] == "websocket":
            await receive()
            await WebSocketClose(reason=refused.why)(scope, receive, send)
            return
        headers = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}}.get(refused.status)
        body = self._refusal(refused.status, refused.why)
        await JSONResponse(body, refused.status, headers)(scope, receive, send)


def replayed(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
