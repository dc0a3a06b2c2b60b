"""Access checks before the routes of a server: host name, origin, token, content type and body size."""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf.http.binding import may_be_asked_as
from rlhf.http.crowd import Crowd

OPEN = ("GET", "/health")
"""Answered without a token: load balancers have none, and the answer reveals nothing to them."""
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
Words = Callable[[int, str], Mapping[str, Any]]
"""Makes the JSON body of a refusal, in the server's own format, from its status and a sentence."""


class ClientLeft(Exception):
    """The client disconnected before its request was complete."""


class HttpRefused(Exception):
    """A request that fails an access check."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """The rules of the access checks. With `tries_token` a wrong token is refused at `/health` too, for clients that
    check their token there. With `needs_length` a body without a stated length is refused."""

    names: Collection[str] = ()
    token: str | None = None
    tries_token: bool = False
    needs_length: bool = False


class AccessMiddleware:
    """ASGI middleware that checks every HTTP and WebSocket request: it must name this server, come from no other
    origin, have the token, and bring JSON of a bounded size. A body is read here, and its bytes count as held until its
    answer is sent."""

    def __init__(self, app: ASGIApp, crowd: Crowd, words: Words, rules: AccessRules) -> None:
        self.crowd = crowd
        self._app, self._words, self._rules = app, words, rules
        self._expected = None if rules.token is None else f"Bearer {rules.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._check(scope, headers)
            if scope["type"] == "http" and scope["method"] in WITH_BODY:
                await self._with_body(scope, headers, receive, send)
            else:
                await self._app(scope, receive, send)
        except HttpRefused as refusal:
            self._tell(scope, refusal)
            await refuse(scope, receive, send, refusal, self._words)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Check host name, origin and token. Raises `HttpRefused`."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            raise HttpRefused(400, "a request has one Host header")
        host, address = hosts[0].decode("latin-1").lower(), (scope.get("server") or ("",))[0]
        if not may_be_asked_as(host, self._rules.names, address):
            raise HttpRefused(421, f"this server is not called {host!r:.100}; if it is, start it with --name")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            raise HttpRefused(403, "a page of another origin may not ask")
        if not self._admits(scope, headers.get(b"authorization")):
            raise HttpRefused(401, "a bearer token is needed, and this is not it")

    def _admits(self, scope: Scope, given: bytes | None) -> bool:
        if self._expected is None:
            return True
        open_to_all = (scope.get("method"), scope["path"]) == OPEN
        if open_to_all and (given is None or not self._rules.tries_token):
            return True
        return given is not None and hmac.compare_digest(given, self._expected)

    async def _with_body(self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        """Check and read the body, then call the application. Raises `HttpRefused`."""
        most, stated = self.crowd.limits.body_bytes, b"transfer-encoding" not in headers
        length = int(headers.get(b"content-length", b"0"))
        if not stated and self._rules.needs_length:
            raise HttpRefused(411, "the length of the body must be stated")
        if length > most:
            raise HttpRefused(413, f"the body is longer than {most} bytes")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if (length or not stated) and kind != b"application/json":
            raise HttpRefused(415, "a body has the Content-Type application/json")
        held = 0
        body = bytearray()
        try:
            async for piece in pieces_of(receive):
                if len(body) + len(piece) > most:
                    raise HttpRefused(413, f"the body is longer than {most} bytes")
                if not self.crowd.held.take(len(piece)):
                    raise HttpRefused(503, "the server holds all the requests that it can; come back")
                held += len(piece)
                body += piece
            await self._app(scope, replayed(bytes(body), receive), send)
        except ClientLeft:
            return
        finally:
            self.crowd.held.take(-held)

    def _tell(self, scope: Scope, refusal: HttpRefused) -> None:
        peer = (scope.get("client") or ("?",))[0]
        asked = f"{scope.get('method', 'WebSocket')} {scope['path'][:100]}"
        self.crowd.told.refused(str(peer), f"{refusal.status}: {refusal.why} ({asked})")


async def pieces_of(receive: Receive) -> AsyncIterator[bytes]:
    """The chunks of a body as they arrive. Raises `ClientLeft`."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        yield message.get("body", b"")
        more = message.get("more_body", False)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first returns a body which was already read."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def refuse(scope: Scope, receive: Receive, send: Send, refusal: HttpRefused, words: Words) -> None:
    """Send an error as the answer; a WebSocket is refused before its handshake completes."""
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    if scope["type"] == "websocket":
        await receive()
    body = json.dumps(words(refusal.status, refusal.why)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer")] if refusal.status == 401 else []
    headers += [(b"retry-after", b"1")] if refusal.status == 503 else []
    await send({"type": f"{prefix}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
