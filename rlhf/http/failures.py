"""Classifies failures of one HTTP attempt, and decides which may be retried."""

from __future__ import annotations

import httpx

from rlhf.errors import HttpFailed

UNTOUCHED = frozenset({"refused", "busy"})
"""The server did no work: a retry is always safe."""
UNCERTAIN = frozenset({"timeout", "lost", "server"})
"""The server may have done the work: only a request that may be repeated is retried."""
ALIVE = frozenset({"rejected", "busy"})
"""The server works normally; such an answer says nothing about the next call."""
BUSY_STATUS = frozenset({429, 503})
DENIED_STATUS = frozenset({401, 403})


def may_repeat(failure: HttpFailed, repeatable: bool) -> bool:
    """Whether another attempt is safe."""
    return failure.kind in UNTOUCHED or (repeatable and failure.kind in UNCERTAIN)


def of_transport(where: str, error: httpx.HTTPError) -> HttpFailed:
    """Classify a failure below HTTP, such as a connection error."""
    detail = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)):
        return HttpFailed(where, "refused", detail)
    if isinstance(error, httpx.TimeoutException):
        return HttpFailed(where, "timeout", detail)
    if isinstance(error, httpx.TransportError):
        return HttpFailed(where, "lost", detail)
    return HttpFailed(where, "protocol", detail)


def of_status(where: str, status: int, body: bytes, retry_after: str | None) -> HttpFailed | None:
    """Classify an answer by its status; None for a success."""
    if 200 <= status < 300:
        return None
    detail = f"status {status}: {' '.join(body[:300].decode(errors='replace').split())}".rstrip(": ")
    return HttpFailed(where, _kind(status), detail, retry_after_seconds=_seconds(retry_after))


def _kind(status: int) -> str:
    if status in BUSY_STATUS:
        return "busy"
    if status in DENIED_STATUS:
        return "denied"
    return "server" if status >= 500 or status == 408 else "rejected"


def _seconds(retry_after: str | None) -> float:
    """`Retry-After` in seconds; its other form, a date, is ignored."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else 0.0
