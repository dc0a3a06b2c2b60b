"""JSON-RPC of the OpenEnv wire format: tools, and sessions that outlive a connection."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf.env.encoding import tool_data
from rlhf.env.server.acting import BadCall, call_tool, find_tool
from rlhf.env.server.session import EnvironmentSession
from rlhf.env.server.sessions import EnvironmentSessions
from rlhf.env.wire import Code, EnvironmentRefused, Json, ResetData, invalid
from rlhf.types import EnvironmentSpec

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, SERVER_ERROR = -32602, -32603, -32000


class RpcRequest(BaseModel):
    """One call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jsonrpc: Literal["2.0"]
    method: str
    params: Json = {}
    id: str | int | None = None


class RpcError(Exception):
    """A call that receives an error response."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


def success(request_id: Any, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(request_id: Any, error: RpcError) -> Json:
    told: Json = {"code": error.code, "message": str(error)}
    return {"jsonrpc": "2.0", "id": request_id, "error": told | ({"data": error.data} if error.data else {})}


async def answer_rpc(sessions: EnvironmentSessions, data: object, own: EnvironmentSession | None = None) -> Json:
    """The response to one request; errors are responses too. `own` is the session of the WebSocket that carried it."""
    try:
        request = RpcRequest.model_validate(data)
    except ValidationError as error:
        return failure(None, RpcError(INVALID_REQUEST, f"Invalid request: {invalid(error)}"))
    try:
        return success(request.id, await perform(sessions, request, own))
    except RpcError as error:
        return failure(request.id, error)
    except EnvironmentRefused as refused:
        return failure(request.id, RpcError(rpc_code(refused), str(refused), refused.data))


def rpc_code(refused: EnvironmentRefused) -> int:
    """The JSON-RPC error code of a refusal."""
    if refused.code in (Code.CAPACITY_REACHED, Code.FACTORY_ERROR):
        return SERVER_ERROR
    return INVALID_PARAMS if refused.code in (Code.SESSION_ERROR, Code.VALIDATION_ERROR) else INTERNAL_ERROR


async def perform(sessions: EnvironmentSessions, request: RpcRequest, own: EnvironmentSession | None) -> Json:
    """The result of one call. Raises `RpcError`, `EnvironmentRefused`."""
    if request.method == "openenv/session/create":
        return {"session_id": (own or await sessions.open()).id}
    if request.method == "openenv/session/close":
        return close_session(sessions, request.params, own)
    if request.method == "tools/list":
        return {"tools": listed(spec_with_tools(sessions))}
    if request.method == "tools/call":
        return await call(sessions, request.params, own)
    raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method:.100}")


def close_session(sessions: EnvironmentSessions, params: Json, own: EnvironmentSession | None) -> Json:
    """End the session that the request names. Raises `RpcError`."""
    session_id = text_param(params, "session_id")
    if own is not None and own.id == session_id:
        raise RpcError(INVALID_REQUEST, "A socket cannot close its own session so: send a close frame")
    if not sessions.end(session_id):
        raise RpcError(INVALID_PARAMS, f"Unknown session_id: {session_id:.64}")
    return {"session_id": session_id, "closed": True}


def listed(spec: EnvironmentSpec) -> list[Json]:
    """The tools in MCP's format."""
    tools = [tool_data(tool) for tool in spec.tools]
    return [
        {"name": one["name"], "description": one["description"], "inputSchema": one["input_schema"]} for one in tools
    ]


async def call(sessions: EnvironmentSessions, params: Json, own: EnvironmentSession | None) -> Json:
    """A tool call, in the named session, or in a temporary one made for it."""
    spec, name = spec_with_tools(sessions), text_param(params, "name")
    try:
        find_tool(spec, name)
    except BadCall as bad:
        raise RpcError(INVALID_PARAMS, str(bad)) from None
    if own is None and "session_id" not in params:
        own_for_once = await sessions.open()
        try:
            return await call_in(own_for_once, spec, name, params)
        finally:
            sessions.end(own_for_once.id)
    return await call_in(own or sessions.find(text_param(params, "session_id")), spec, name, params)


async def call_in(session: EnvironmentSession, spec: EnvironmentSpec, name: str, params: Json) -> Json:
    """The result of a call. A new session is reset first: a client that knows only tools never does."""
    if session.fresh:
        await session.reset(ResetData())
    answer = await call_tool(session, spec, name, params.get("arguments", {}))
    said = answer["observation"]
    if said["error"] is not None:
        text = said["error"]["message"]
        return {"content": [{"type": "text", "text": text}], "structured_content": None, "data": None, "is_error": True}
    result: Json = said["result"]
    return result


def spec_with_tools(sessions: EnvironmentSessions) -> EnvironmentSpec:
    """The spec of an environment with tools. Raises `RpcError` where it has none."""
    if not sessions.isolation.spec.tools:
        raise RpcError(INTERNAL_ERROR, "Environment does not support MCP: it has no tools")
    return sessions.isolation.spec


def text_param(params: Json, name: str) -> str:
    """A required text parameter. Raises `RpcError` where it is missing."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RpcError(INVALID_PARAMS, f"Invalid params - {name!r} is required")
    return value
