"""OpenAPI schemas of the server's HTTP responses. The responses are built elsewhere, and not validated against
these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from rlhf.env.server.mcp import RpcRequest
from rlhf.env.wire import Json, StateData

Responses = dict[int | str, dict[str, Any]]


class Health(BaseModel):
    """The server is healthy."""

    status: Literal["healthy"]


class StepResponse(BaseModel):
    """An environment's observation after a reset or an action."""

    observation: Json
    reward: float | None
    done: bool
    metadata: Json = {}


class ErrorResponse(BaseModel):
    """Why a request was refused: `message`, `code`, and `kind` where an environment or a session has failed."""

    detail: Json


class RpcAnswer(BaseModel):
    """A response of JSON-RPC: a result, or an error."""

    jsonrpc: Literal["2.0"]
    id: str | int | None
    result: Json = {}
    error: Json | None = None


def problems(*statuses: int) -> Responses:
    """Return the error responses with these status codes."""
    return {status: {"model": ErrorResponse, "description": "An error"} for status in statuses}


HEALTH: Responses = {200: {"model": Health}, **problems(413)}
TOLD: Responses = problems(401, 413)
STATE: Responses = {200: {"model": StateData}, **problems(401, 404, 413, 422)}
RESET: Responses = {200: {"model": StepResponse}, **problems(400, 401, 409, 410, 413, 422, 500, 503, 504)}
STEP: Responses = {**RESET, **problems(404)}
MCP: Responses = {
    200: {"model": RpcAnswer},
    202: {"description": "A notification of MCP: there is nothing to answer"},
    400: {"model": RpcAnswer, "description": "Not one message of MCP"},
    **problems(401, 413, 500, 503),
}
MCP_BODY: Json = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": RpcRequest.model_json_schema()}}}
}
