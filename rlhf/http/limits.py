"""Limits on what a server accepts from any client, before the client is authenticated."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from rlhf.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits in bytes, counts and seconds. A request beyond a limit gets an error, or its connection is closed."""

    header_count: int = 100
    """Number of headers of a request, trailers included. One more is a 431."""
    header_bytes: int = 32 * 2**10
    """Size of request line and headers together; also of body bytes that are not content. More is a 431."""
    head_seconds: float = 10.0
    """Time from the first byte of a request to the end of its headers, and from connecting to the first request:
    408."""
    body_bytes: int = 2**20
    """Size of one body: 413. Of a WebSocket message: answered with an error; four times as much closes it with 1009."""
    body_seconds: float = 60.0
    """Time from the end of the headers to the end of the body: 408. The same for one WebSocket message: close code
    1008."""
    send_seconds: float = 60.0
    """Time that a client may leave an answer unread before its connection is closed."""
    idle_seconds: float = 75.0
    """Time that a connection may be idle between two requests."""
    waiting_bytes: int = 256 * 2**20
    """Size of all bodies that were read and are not answered, and of all incomplete WebSocket messages: 503."""
    connections: int = 4096
    """Number of open connections. For one more, the connection that has waited longest for its next request is
    closed."""
    peer_connections: int = 2048
    """Number of open connections from one address that is not loopback; a further one is closed unread."""


POLICY = HttpLimits(body_bytes=16 * 2**20)
REWARD = SANDBOX = HttpLimits(body_bytes=64 * 2**20)
WHOLE = frozenset(field.name for field in fields(HttpLimits) if field.type == "int")


def limits_from(given: list[str], limits: HttpLimits) -> HttpLimits:
    """`limits` updated from `KEY=VALUE` texts. Raises `ConfigError`."""
    known = [field.name for field in fields(HttpLimits)]
    chosen: dict[str, Any] = {}
    for text in given:
        key, _, value = text.partition("=")
        if key not in known:
            raise ConfigError(f"--limit {text!r:.60}: there is no limit {key!r:.40}; use {', '.join(known)}")
        try:
            number = int(value) if key in WHOLE else float(value)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise ConfigError(f"--limit {text!r:.60}: {key} is a number above 0")
        chosen[key] = number
    return replace(limits, **chosen)
