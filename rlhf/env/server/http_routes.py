"""HTTP routes of the wire format: server information, MCP, and requests that each have their own session."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from rlhf.env.encoding import answer_data, spec_data
from rlhf.env.server.acting import act, answer_text
from rlhf.env.server.mcp import MCP_SESSION, MCP_VERSION, answer_mcp
from rlhf.env.server.sessions import EnvironmentSessions
from rlhf.env.wire import EXTRAS_VERSION, Action, Code, EnvironmentRefused, Json, ObservationData, ResetData, StateData
from rlhf.http.serving import StrictRoute

McpSessionId = Annotated[str | None, Header(alias=MCP_SESSION)]
McpVersion = Annotated[str | None, Header(alias=MCP_VERSION)]


class StepResponse(BaseModel):
    """An environment's observation after a reset or an action."""

    observation: Json
    reward: float | None
    done: bool
    metadata: Json = {}


class ErrorResponse(BaseModel):
    """Why a request was refused: `message`, `code`, and `kind` where an environment or a session has failed."""

    detail: Json


class McpErrorResponse(BaseModel):
    """Why an MCP request was refused, as JSON-RPC says it."""

    error: Json
    id: int | str | None


OBSERVED: dict[int | str, dict[str, Any]] = {200: {"model": StepResponse}}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": "An error"}
    for status in (400, 401, 404, 409, 410, 413, 422, 500, 503, 504)
}
OF_MCP: dict[int | str, dict[str, Any]] = {
    202: {"description": "A notification needs no answer"},
    **{status: {"model": McpErrorResponse | ErrorResponse, "description": "An error"} for status in (400, 404)},
}


class WireJson(JSONResponse):
    def render(self, content: Any) -> bytes:
        return answer_text(content).encode()


def http_routes(sessions: EnvironmentSessions) -> APIRouter:
    router = APIRouter(default_response_class=WireJson, route_class=StrictRoute, responses=ERRORS)
    spec = sessions.isolation.spec

    @router.get("/health")
    async def health() -> Response:
        return WireJson({"status": "healthy"})

    @router.get("/metadata")
    async def metadata() -> Json:
        extras = {"version": EXTRAS_VERSION, "spec": spec_data(spec), "active_sessions": sessions.active}
        return {"name": spec.name, "description": spec.description, "extras": extras}

    @router.get("/schema")
    async def schema() -> Json:
        return {
            "action": Action.model_json_schema(),
            "observation": ObservationData.model_json_schema(),
            "state": StateData.model_json_schema(),
        }

    @router.get("/list_environments")
    async def list_environments() -> list[str]:
        return [spec.name]

    @router.get("/state", responses={200: {"model": StateData}})
    async def state() -> Response:
        return WireJson(StateData().model_dump())

    @router.post("/reset", responses=OBSERVED)
    async def reset(body: Annotated[ResetData, Body(default_factory=ResetData)]) -> Response:
        async with sessions.opened() as session:
            return WireJson(answer_data(await session.reset(body), spec.tools))

    @router.post("/step", responses=OBSERVED)
    async def step(action: Annotated[Json, Body(embed=True)]) -> Response:
        async with sessions.opened() as session:
            await session.reset(ResetData())
            return WireJson(await act(session, spec, action))

    @router.post("/mcp", responses=OF_MCP)
    async def mcp(body: Json, session_id: McpSessionId = None, version: McpVersion = None) -> Response:
        status, answer, headers = await answer_mcp(sessions, body, session_id, version)
        return Response(status_code=status) if answer is None else WireJson(answer, status, headers)

    @router.delete("/mcp", include_in_schema=False)
    async def end_mcp(session_id: McpSessionId = None) -> Response:
        return Response(status_code=204 if sessions.end(session_id or "") else 404)

    return router


async def answer_refusal(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, EnvironmentRefused)
    headers = {"Retry-After": "1"} if refused.code is Code.CAPACITY_REACHED else None
    return WireJson({"detail": refused.data}, status_code=refused.status, headers=headers)
