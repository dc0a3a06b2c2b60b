"""Where servers listen, and who may ask: loopback, or a token."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rlhf.errors import ConfigError

LOOPBACK = "127.0.0.1"
OPEN_PATHS = frozenset({"/health"})
"""Anybody may ask whether a server is alive; with a wrong token it is better to know that it is wrong."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether a host is this machine as only it can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_address() -> str:
    """The address other hosts reach this one by; loopback when there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only picks the outgoing interface.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def check_binding(host: str, token: str | None) -> None:
    """Raises `ConfigError` for a server that others could reach and anybody could use."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host {host} can be reached from other machines, and there is no token; "
            f"name the environment variable that holds one with --token-env, or listen on {LOOPBACK}"
        )


class BearerToken:
    """An ASGI application behind a bearer token: without it HTTP gets 401, and a WebSocket is not accepted."""

    def __init__(self, app: App, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "a bearer token is needed"})
        else:
            await _refuse(send)

    def _admits(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization")
        if given is None:
            return scope["path"] in OPEN_PATHS
        return hmac.compare_digest(given, self._expected)


async def _refuse(send: Send) -> None:
    body = b'{"error": {"message": "a bearer token is needed", "type": "denied", "code": 401}}'
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
