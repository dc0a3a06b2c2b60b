"""One exchange with a server that is not trusted: so many bytes, as they came, and nothing that unfolds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx

from rlhf.http.foreign import InvalidJson, mended

ANSWER_BYTES = 64 * 2**20
"""A longer answer is nonsense, and is not kept in memory."""
REFUSAL_BYTES = 4096
"""Of an answer that is no success: what is told of it is shorter."""
IDENTITY = {"Accept-Encoding": "identity"}
"""A compressed answer may be a thousand times what was sent, in memory before anyone has seen how much it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """What a server answered. Of one that is no success `content` is the beginning."""

    status: int
    content: bytes
    retry_after: str | None = None


def json_body(body: Any) -> bytes:
    """`body` as JSON. What a policy wrote may hold halves of characters, which most servers refuse to read."""
    text = json.dumps(body, allow_nan=False)
    return (json.dumps(mended(body), allow_nan=False) if "\\ud" in text else text).encode()


def client(**settings: Any) -> httpx.AsyncClient:
    """A client that asks for nothing compressed, follows no redirect (a token would go with it), and keeps no cookie: a
    server could set new ones with every answer."""
    http = httpx.AsyncClient(**settings, follow_redirects=False)
    http.headers.update(IDENTITY)
    http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return http


async def send_request(http: httpx.AsyncClient, request: httpx.Request) -> HttpResponse:
    """Send, and receive. Raises `InvalidJson` for a success that is compressed or too long, and httpx's errors. The
    caller's deadline is around it: httpx's are for each part of an answer by itself."""
    response = await http.send(request, stream=True)
    try:
        retry_after = response.headers.get("retry-after")
        return HttpResponse(status=response.status_code, content=await received(response), retry_after=retry_after)
    finally:
        await response.aclose()


async def received(response: httpx.Response) -> bytes:
    """The content of a response that is being received, as it comes: of a success all, of any other the beginning.

    Raises `InvalidJson` for a success that is compressed or too long.
    """
    if response.is_stream_consumed:  # a replayed one was never on its way
        return response.content
    longest = ANSWER_BYTES if response.is_success else REFUSAL_BYTES
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if response.is_success and encoding not in ("identity", ""):
        raise InvalidJson(f"the answer is compressed ({encoding[:20]}), which was not asked for")
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > longest:
            if response.is_success:
                raise InvalidJson(f"the answer is longer than {longest} bytes")
            break
    return bytes(content[:longest])
