"""HTTP transport to MCP servers: bounded answers, no compression, no cookies."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

ANSWER_BYTES = 16 * 2**20
"""Maximum size of one answer, all events of a stream together. mcp's parser takes three seconds for it."""


class Bounded(httpx2.AsyncHTTPTransport):
    """Aborts an answer that is compressed or too long: mcp's own client would read either completely."""

    def __init__(self) -> None:
        super().__init__()
        self._result = bytearray()

    def sent_error(self, code: int) -> bool:
        """Whether the server answered with a JSON-RPC error of that code, and not with a broken connection."""
        return b'"jsonrpc"' in self._result and re.search(rb'"code"\s*:\s*%d\b' % code, self._result) is not None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is compressed, although the request did not allow it")
        response.stream = Counted(response.stream, self._result if b'"tools/call"' in request.content else bytearray())
        return response


class Counted(httpx2.AsyncByteStream):
    """A stream that ends with an error after `ANSWER_BYTES`; all parts are kept in `kept`."""

    def __init__(self, inner: Any, kept: bytearray) -> None:
        self._inner, self._kept = inner, kept

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            self._kept += part
            if len(self._kept) > ANSWER_BYTES:
                raise httpx2.RemoteProtocolError(f"the answer is longer than {ANSWER_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def connect(url: str, seconds: float) -> tuple[Any, httpx2.AsyncClient, Bounded]:
    """mcp's transport to `url`, the HTTP client to close after it, and that client's own transport."""
    bounded = Bounded()
    http = httpx2.AsyncClient(transport=bounded, timeout=seconds)
    http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return streamable_http_client(url, http_client=http, max_sse_event_size=ANSWER_BYTES), http, bounded
