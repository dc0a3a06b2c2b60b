"""Serve an ASGI application with uvicorn: limits, TLS, sockets, and routes that parse bodies strictly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from rlhf.errors import DeadlinePassed, UserError
from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import LOOPBACK, Access
from rlhf.untrusted_text import read_json

BACKLOG = 4096
"""Connections that the kernel queues while a server is busy: a thousand clients may start at once."""
START_SECONDS = 20.0
END_SECONDS = 10.0
"""Time that a server has to stop, running requests included, before it is cancelled."""
GOODBYE_SECONDS = 10
"""Time that running requests have to finish when the server stops."""


def uvicorn_config(
    app: AccessMiddleware, access: Access, *, host: str = LOOPBACK, port: int = 0, **others: Any
) -> uvicorn.Config:
    """Return uvicorn's configuration with the limits of `access`, and TLS if it has a certificate; `others` are passed
    on to uvicorn. Raises the process's limit on open files as far as allowed."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    limits = access.limits
    settings: dict[str, Any] = {
        "http": "h11",  # it bounds headers, which httptools does not
        "ws": "websockets-sansio",
        "log_level": "error",  # `AccessMiddleware` logs refused requests
        "access_log": False,
        "server_header": False,
        "backlog": BACKLOG,
        "limit_concurrency": limits.connections,
        "h11_max_incomplete_event_size": limits.header_bytes,
        "timeout_keep_alive": limits.idle_seconds,
        "timeout_graceful_shutdown": GOODBYE_SECONDS,
        "ws_max_size": 4 * limits.body_bytes,  # routes bound the characters, with an error message
        "ws_per_message_deflate": False,  # at 8 kB messages it more than halves throughput
        "ssl_certfile": access.certificate,
        "ssl_keyfile": access.key,
    }
    return uvicorn.Config(app, host=host, port=port, **settings | others)


def bound(host: str, port: int) -> contextlib.closing[socket.socket]:
    """Return a listening socket at the address; port 0 means any free port. Raises `UserError` if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return contextlib.closing(socket.create_server((host, port), family=family, backlog=BACKLOG))
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return f"{'https' if tls else 'http'}://{host}:{port}"


@contextlib.asynccontextmanager
async def listening(config: uvicorn.Config) -> AsyncIterator[str]:
    """Run a server and yield its URL. At the end it stops, or is cancelled if it does not stop in time. Raises
    `UserError` for an address that is not available, `DeadlinePassed` when it does not start."""
    with bound(config.host, config.port) as listener:
        server = BackgroundServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            try:
                async with asyncio.timeout(START_SECONDS):
                    while not server.started and not serving.done():
                        await asyncio.sleep(0.01)
            except TimeoutError:
                raise DeadlinePassed("the start of a server", START_SECONDS) from None
            if serving.done():
                serving.result()
            yield url_of(listener, tls=config.is_ssl)
        finally:
            server.should_exit = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(serving, END_SECONDS)


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for an unknown path with those that exist; the `default` of a router."""
    if scope["type"] == "websocket":
        return await WebSocketClose()(scope, receive, send)
    routes = [route for route in scope["app"].routes if isinstance(route, APIRoute) and route.include_in_schema]
    known = ", ".join(sorted(f"{'/'.join(sorted(route.methods))} {route.path}" for route in routes))
    raise HTTPException(404, f"there is no {scope['path']:.100}; this server has {known}")


class BackgroundServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class StrictRequest(Request):
    async def json(self) -> Any:
        """Parse the body. Raises `json.JSONDecodeError`, which FastAPI treats as a body that is not JSON."""
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
