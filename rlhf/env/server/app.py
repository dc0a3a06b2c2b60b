"""The environment server: any `LocalEnvironment` over the OpenEnv wire format, with this library's extensions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError

from rlhf.env.hosting.hosted import EnvironmentIsolation
from rlhf.env.hosting.isolation import Deadlines
from rlhf.env.server.http_routes import answer_refusal, http_routes
from rlhf.env.server.sessions import EnvironmentSessions
from rlhf.env.server.socket_route import serve_socket
from rlhf.env.wire import API_VERSION, Code, EnvironmentRefused, Json
from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import ENVIRONMENT, Access, HttpLimits
from rlhf.http.serving import unknown_path, uvicorn_config

STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentServerSettings:
    """Settings of a server. `lease_seconds` is how long a session lives without a connection or a request."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    max_sessions: int = 1024
    lease_seconds: float = 120.0
    access: Access = field(default_factory=Access)
    deadlines: Deadlines = field(default_factory=Deadlines)


def limits_for_sessions(max_sessions: int) -> HttpLimits:
    """Limits that allow one machine to open this many sessions, each a connection, and to reopen them."""
    return replace(ENVIRONMENT, connections=max(ENVIRONMENT.connections, 2 * max_sessions))


def build_app(isolation: EnvironmentIsolation, settings: EnvironmentServerSettings) -> AccessMiddleware:
    """Build the application. The caller starts and stops `isolation`."""
    sessions = EnvironmentSessions(isolation, settings.max_sessions, settings.lease_seconds)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reaper = asyncio.create_task(sessions.reap())
        yield
        reaper.cancel()
        await sessions.stop()

    app = FastAPI(title=isolation.spec.name, version=API_VERSION, lifespan=lifespan)
    most_bytes = settings.access.limits.body_bytes
    app.include_router(http_routes(sessions))
    app.router.default = unknown_path
    app.add_exception_handler(EnvironmentRefused, answer_refusal)
    app.add_exception_handler(RequestValidationError, answer_invalid)

    @app.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await serve_socket(websocket, sessions, most_bytes)

    return AccessMiddleware(app, denied, settings.access, host=settings.host, token=settings.token)


def denied(status: int, why: str) -> Json:
    codes = {503: Code.CAPACITY_REACHED, 401: Code.SESSION_ERROR, 403: Code.SESSION_ERROR, 421: Code.SESSION_ERROR}
    return {"detail": {"message": why, "code": codes.get(status, Code.VALIDATION_ERROR), "kind": "refused"}}


async def answer_invalid(request: Request, error: Exception) -> Response:
    """Return the response for an invalid body, with the code that the WebSocket would give."""
    assert isinstance(error, RequestValidationError)
    problems = [{key: problem[key] for key in ("type", "loc", "msg")} for problem in error.errors()]
    is_json = all(problem["type"] != "json_invalid" for problem in problems)
    code, status = (Code.VALIDATION_ERROR, 422) if is_json else (Code.INVALID_JSON, 400)
    return await answer_refusal(request, EnvironmentRefused(code, "Invalid request", status, errors=problems))


def environment_uvicorn_config(isolation: EnvironmentIsolation, settings: EnvironmentServerSettings) -> uvicorn.Config:
    """Configure a server of the application. The caller starts and stops `isolation`."""
    return uvicorn_config(
        build_app(isolation, settings),
        settings.access,
        host=settings.host,
        port=settings.port,
        timeout_graceful_shutdown=int(STOP_SECONDS),
    )
