"""How a browser brings the token: the address `/?token=…` leaves it as a cookie, which every later request has."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from rlhf.http.access import AccessMiddleware

INDEX = "/static/index.html"
ONWARD = f'<!doctype html><title>rlhf</title><meta http-equiv="refresh" content="0; url={INDEX}">'
"""Leads to the page without the token in its address. A redirect would lose the cookie after a link of another site."""


class PageAccess(AccessMiddleware):
    """`AccessMiddleware` of a page: its token may also come by cookie, or in the address of `/`."""

    def __init__(self, *given: Any, token: str | None, **settings: Any) -> None:
        super().__init__(*given, token=token, **settings)
        self._name, self._value = cookie_of(token or "")
        self._bearer = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._bearer is not None:
            request, bearer = Request(scope), None
            if hmac.compare_digest(request.cookies.get(self._name, "").encode(), self._value.encode()):
                bearer = self._bearer
            elif request.url.path == "/" and (given := request.query_params.get("token")):
                bearer = f"Bearer {given}".encode()
            if bearer and "authorization" not in request.headers:
                scope = {**scope, "headers": [*scope["headers"], (b"authorization", bearer)]}
        await super().__call__(scope, receive, send)


def start_page(request: Request) -> Response:
    """Lead to the page, and leave the cookie for a token in the address, which was checked before."""
    token = request.query_params.get("token")
    if not token:
        return RedirectResponse(INDEX)
    answer = HTMLResponse(ONWARD)
    name, value = cookie_of(token)
    answer.set_cookie(name, value, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


def cookie_of(token: str) -> tuple[str, str]:
    """Return the name and value of a token's cookie: a digest, so that servers on other ports have others."""
    digest = sha256(f"rlhf view {token}".encode()).hexdigest()
    return f"rlhf-{digest[:8]}", digest
