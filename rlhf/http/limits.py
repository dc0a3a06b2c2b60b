"""Limits on what a server accepts from any client."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from rlhf.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits in bytes, counts and seconds. A request beyond a limit gets an error, or its connection is closed."""

    header_bytes: int = 32 * 2**10
    """Size of request line and headers together: 400."""
    body_bytes: int = 2**20
    """Size of one body: 413. Of a WebSocket message: answered with an error; four times as much closes it with 1009."""
    body_seconds: int = 60
    """Time from the end of the headers to the end of the body: 408."""
    idle_seconds: int = 75
    """Time that a connection may be idle between two requests, until it is closed."""
    connections: int = 4096
    """Number of open connections, WebSockets included. With that many, a further request gets a 503."""


POLICY = HttpLimits(body_bytes=16 * 2**20)
REWARD = SANDBOX = HttpLimits(body_bytes=64 * 2**20)


def limits_from(texts: list[str], limits: HttpLimits) -> HttpLimits:
    """`limits` updated from `KEY=VALUE` texts. Raises `ConfigError`."""
    chosen: dict[str, int] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in asdict(limits):
            known = ", ".join(asdict(limits))
            raise ConfigError(f"--limit {text!r:.60}: there is no limit {key!r:.40}; use {known}")
        if not value.isdecimal() or len(value) > 15 or not int(value):
            raise ConfigError(f"--limit {text!r:.60}: {key} is a whole number above 0")
        chosen[key] = int(value)
    return replace(limits, **chosen)
