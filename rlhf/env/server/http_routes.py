"""HTTP routes of the wire format: server information, and sessions by header for clients without a WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Request
from fastapi.responses import JSONResponse, Response

from rlhf.env.encoding import answer_data, dumps, spec_data
from rlhf.env.server import openapi
from rlhf.env.server.acting import act
from rlhf.env.server.mcp import PARSE_ERROR, RpcError, answer_mcp, answer_rpc, rpc_failure, speaks_mcp
from rlhf.env.server.sessions import EnvironmentSession, EnvironmentSessions
from rlhf.env.wire import (
    EXTRAS_VERSION,
    SESSION_HEADER,
    Action,
    Code,
    EnvironmentRefused,
    Json,
    ObservationData,
    ResetData,
    StateData,
    StepBody,
)
from rlhf.http.serving import StrictRoute
from rlhf.http.untrusted_text import read_json

SessionId = Annotated[str | None, Header(alias=SESSION_HEADER, min_length=8, max_length=255)]


class WireJson(JSONResponse):
    """JSON by the wire format's encoder."""

    def render(self, content: Any) -> bytes:
        return dumps(content).encode()


def http_routes(sessions: EnvironmentSessions, describe: Callable[[], Json]) -> APIRouter:
    """Return the routes. `describe` adds the server's settings to `/metadata`."""
    router = APIRouter(default_response_class=WireJson, route_class=StrictRoute)
    spec = sessions.isolation.spec

    @router.get("/health", responses=openapi.HEALTH)
    async def health() -> Response:
        return WireJson({"status": "healthy"})

    @router.get("/metadata", responses=openapi.TOLD)
    async def metadata() -> Json:
        extras = {"version": EXTRAS_VERSION, "spec": spec_data(spec), "active_sessions": sessions.active, **describe()}
        return {"name": spec.name, "description": spec.description, "extras": extras}

    @router.get("/schema", responses=openapi.TOLD)
    async def schema() -> Json:
        return {
            "action": Action.model_json_schema(),
            "observation": ObservationData.model_json_schema(),
            "state": StateData.model_json_schema(),
        }

    @router.get("/list_environments", responses=openapi.TOLD)
    async def list_environments() -> list[str]:
        return [spec.name]

    @router.get("/state", responses=openapi.STATE)
    async def state(session_id: SessionId = None) -> Response:
        return WireJson(sessions.find(session_id).state if session_id else StateData().model_dump())

    @router.post("/reset", responses=openapi.RESET)
    async def reset(
        body: Annotated[ResetData, Body(default_factory=ResetData)], session_id: SessionId = None
    ) -> Response:
        async with session_of_request(sessions, session_id, opens=True) as session:
            return WireJson(answer_data(await session.reset(body), spec.tools))

    @router.post("/step", responses=openapi.STEP)
    async def step(body: StepBody, session_id: SessionId = None) -> Response:
        async with session_of_request(sessions, session_id, opens=False) as session:
            if session_id is None:
                await session.reset(ResetData())
            return WireJson(await act(session, spec, body.action, body.request_id, body.timeout_s))

    @router.post("/mcp", responses=openapi.MCP, openapi_extra=openapi.MCP_BODY)
    async def mcp(request: Request) -> Response:
        try:
            body = read_json(await request.body())
        except ValueError:
            return WireJson(rpc_failure(None, RpcError(PARSE_ERROR, "Parse error")), status_code=400)
        if speaks_mcp(request.headers.get("accept", "")):
            return await answer_mcp(sessions, body, request.headers)
        return WireJson(await answer_rpc(sessions, body))

    return router


@asynccontextmanager
async def session_of_request(
    sessions: EnvironmentSessions, session_id: str | None, opens: bool
) -> AsyncIterator[EnvironmentSession]:
    """The session named in the header; without one, a session for this request only. Raises `EnvironmentRefused`."""
    if session_id is not None:
        yield await sessions.find_or_open(session_id) if opens else sessions.find(session_id)
        return
    session = await sessions.open()
    try:
        yield session
    finally:
        sessions.end(session.id)


async def answer_refusal(request: Request, refused: Exception) -> Response:
    """Return a refusal as an HTTP response."""
    assert isinstance(refused, EnvironmentRefused)
    headers = {"Retry-After": "1"} if refused.code is Code.CAPACITY_REACHED else None
    return WireJson({"detail": refused.data}, status_code=refused.status, headers=headers)
