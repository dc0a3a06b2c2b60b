"""Serves an ASGI application with access checks, connection limits and TLS."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from rlhf.http.access import AccessMiddleware, AccessRules, Words
from rlhf.http.binding import LOOPBACK, Access, server_names
from rlhf.http.crowd import Crowd
from rlhf.http.listening import BACKLOG
from rlhf.http.protocol import HttpConnection, SocketConnection
from rlhf.http.untrusted_text import read_json

OTHER_FILES = 256
"""Open files reserved for everything other than connections."""
GOODBYE_SECONDS = 10
"""Time that running requests have to finish when the server stops."""


def with_access(
    app: ASGIApp,
    words: Words,
    access: Access,
    *,
    host: str = LOOPBACK,
    token: str | None = None,
    tries_token: bool = False,
    needs_length: bool = False,
) -> AccessMiddleware:
    """The application behind access checks (see `AccessRules`); `host` is the address at which it listens."""
    rules = AccessRules(
        names=server_names(host, access.names), token=token, tries_token=tries_token, needs_length=needs_length
    )
    return AccessMiddleware(app, Crowd(access.limits), words, rules)


def uvicorn_config(
    app: AccessMiddleware, access: Access, *, host: str = LOOPBACK, port: int = 0, **others: Any
) -> uvicorn.Config:
    """uvicorn's configuration with limits for every connection, and TLS if there is a certificate; `others` are passed
    on to it.

    The process's limit on open files is raised as far as allowed; the number of connections stays below it.
    """
    most = min(app.crowd.limits.connections, _files() - OTHER_FILES)
    limits = app.crowd.limits = replace(app.crowd.limits, connections=most)
    settings: dict[str, Any] = {
        "log_level": "error",  # client errors are logged once, by the crowd
        "access_log": False,
        "server_header": False,
        "backlog": BACKLOG,
        "timeout_keep_alive": limits.idle_seconds,
        "timeout_graceful_shutdown": GOODBYE_SECONDS,
        "ws_max_size": 4 * limits.body_bytes,  # characters are limited on top of it, with an error message
        "ws_per_message_deflate": False,  # at 8 kB messages it more than halves throughput
        "ssl_certfile": access.certificate,
        "ssl_keyfile": access.key,
    }
    connections: Any = partial(HttpConnection, crowd=app.crowd)
    sockets: Any = partial(SocketConnection, crowd=app.crowd)
    return uvicorn.Config(app, host=host, port=port, http=connections, ws=sockets, **settings | others)


class StrictRequest(Request):
    """A request whose body is parsed by `read_json`."""

    async def json(self) -> Any:
        """Raises `json.JSONDecodeError`, which FastAPI treats as a body that is not JSON."""
        try:
            return read_json(await self.body())
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


class StrictRoute(APIRoute):
    """A route that parses bodies as `StrictRequest` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


def _files() -> int:
    """The number of files that this process may open, raised to its hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
