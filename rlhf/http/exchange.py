"""One HTTP exchange with an untrusted server: a bounded number of bytes, and no compression."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx

from rlhf.http.untrusted_text import InvalidJson, replace_surrogates

ANSWER_BYTES = 64 * 2**20
"""Longest accepted answer; longer ones are not kept in memory."""
REFUSAL_BYTES = 4096
"""Longest kept part of an answer that is not a success: error messages use less of it."""
IDENTITY = {"Accept-Encoding": "identity"}
"""A compressed answer may expand a thousand times in memory before its size is known, so none is requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A server's answer. If it is not a success, `content` is only the beginning."""

    status: int
    content: bytes
    retry_after: str | None = None


def json_body(body: Any) -> bytes:
    """`body` as JSON, with lone surrogates replaced. A policy may write these, and most servers refuse to read them."""
    text = json.dumps(body, allow_nan=False)
    return (json.dumps(replace_surrogates(body), allow_nan=False) if "\\ud" in text else text).encode()


def client(**settings: Any) -> httpx.AsyncClient:
    """An HTTP client that requests no compression, follows no redirect (which would get the token), and keeps no
    cookies: a server could set new ones with every answer."""
    http = httpx.AsyncClient(**settings, follow_redirects=False)
    http.headers.update(IDENTITY)
    http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return http


async def send_request(http: httpx.AsyncClient, request: httpx.Request) -> HttpResponse:
    """Send a request and receive the answer. Raises `InvalidJson` for a success that is compressed or too long, and
    httpx's errors. The caller sets the total deadline: httpx's timeouts apply to each part of an answer separately."""
    response = await http.send(request, stream=True)
    try:
        content = await _content(response)
    finally:
        await response.aclose()
    return HttpResponse(status=response.status_code, content=content, retry_after=response.headers.get("retry-after"))


async def _content(response: httpx.Response) -> bytes:
    """All of a success, the beginning of any other answer."""
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
