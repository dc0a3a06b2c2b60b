"""JSON-RPC at `/mcp`: OpenEnv's tools and sessions that outlive a connection, and MCP's streamable HTTP for the same
tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf.env.encoding import tool_data
from rlhf.env.server.acting import InvalidToolCall, call_tool, find_tool
from rlhf.env.server.sessions import EnvironmentSession, EnvironmentSessions
from rlhf.env.wire import API_VERSION, Code, EnvironmentRefused, Json, ResetData, invalid
from rlhf.types import EnvironmentSpec

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, SERVER_ERROR = -32602, -32603, -32000
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Supported revisions of MCP with a handshake, newest first. A client that requests a later one is offered these."""
MCP_SESSION = "mcp-session-id"


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


def rpc_success(request_id: Any, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def rpc_failure(request_id: Any, error: RpcError) -> Json:
    data = {"data": error.data} if error.data else {}
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": error.code, "message": str(error), **data}}


async def answer_rpc(sessions: EnvironmentSessions, body: object) -> Json:
    """Return the response to one request; errors are responses too."""
    try:
        request = RpcRequest.model_validate(body)
    except ValidationError as error:
        return rpc_failure(None, RpcError(INVALID_REQUEST, f"Invalid request: {invalid(error)}"))
    try:
        return rpc_success(request.id, await perform(sessions, request))
    except RpcError as error:
        return rpc_failure(request.id, error)
    except EnvironmentRefused as refused:
        return rpc_failure(request.id, RpcError(rpc_code(refused), str(refused), refused.data))


def rpc_code(refused: EnvironmentRefused) -> int:
    """Return the JSON-RPC error code of a refusal."""
    if refused.code in (Code.CAPACITY_REACHED, Code.FACTORY_ERROR):
        return SERVER_ERROR
    return INVALID_PARAMS if refused.code in (Code.SESSION_ERROR, Code.VALIDATION_ERROR) else INTERNAL_ERROR


async def perform(sessions: EnvironmentSessions, request: RpcRequest) -> Json:
    """Return the result of one call. Raises `RpcError`, `EnvironmentRefused`."""
    spec, params = sessions.isolation.spec, request.params
    if request.method == "openenv/session/create":
        return {"session_id": (await sessions.open()).id}
    if request.method == "openenv/session/close":
        session_id = text_param(params, "session_id")
        if not sessions.end(session_id):
            raise RpcError(INVALID_PARAMS, f"Unknown session_id: {session_id:.64}")
        return {"session_id": session_id, "closed": True}
    if request.method not in ("tools/list", "tools/call"):
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method:.100}")
    if not spec.tools:
        raise RpcError(INTERNAL_ERROR, "Environment does not support MCP: it has no tools")
    if request.method == "tools/call":
        return await call_in_session(sessions, params)
    tools = [tool_data(tool) for tool in spec.tools]
    for tool in tools:
        tool["inputSchema"] = tool.pop("input_schema")
    return {"tools": tools}


async def call_in_session(sessions: EnvironmentSessions, params: Json) -> Json:
    """Return the result of a tool call, in the named session, or in a temporary one made for it."""
    try:
        find_tool(sessions.isolation.spec, text_param(params, "name"))
    except InvalidToolCall as unknown:
        raise RpcError(INVALID_PARAMS, str(unknown)) from None
    if "session_id" in params:
        return await call(sessions.find(text_param(params, "session_id")), sessions.isolation.spec, params)
    session = await sessions.open()
    try:
        return await call(session, sessions.isolation.spec, params)
    finally:
        sessions.end(session.id)


async def call(session: EnvironmentSession, spec: EnvironmentSpec, params: Json) -> Json:
    """Return the result of a call. A new session is reset first: a client that knows only tools never does."""
    if session.fresh:
        await session.reset(ResetData())
    observation = (await call_tool(session, spec, params["name"], params.get("arguments", {})))["observation"]
    if observation["error"] is None:
        result: Json = observation["result"]
        return result
    text = observation["error"]["message"]
    return {"content": [{"type": "text", "text": text}], "structured_content": None, "data": None, "is_error": True}


def text_param(params: Json, name: str) -> str:
    """Return a required text parameter. Raises `RpcError` where it is missing."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RpcError(INVALID_PARAMS, f"Invalid params - {name!r} is required")
    return value


def speaks_mcp(accept: str) -> bool:
    """Whether a request's Accept header is that of an MCP client: all others get OpenEnv's JSON-RPC."""
    return "text/event-stream" in accept


async def answer_mcp(sessions: EnvironmentSessions, body: object, headers: Mapping[str, str]) -> Response:
    """Return the response to one message of MCP. The handshake opens a session; DELETE or its lease ends it."""
    if isinstance(body, dict) and "id" not in body:
        return Response(status_code=202)
    match body:
        case {"method": str(method), "id": str() | int() as request_id, **others}:
            params = others.get("params") or {}
        case _:
            wrong = "give one message, with id, method and params"
            return JSONResponse(
                rpc_failure(None, RpcError(INVALID_REQUEST, f"Invalid request: {wrong}")), status_code=400
            )
    if method == "initialize":
        return await shake_hands(sessions, request_id, params)
    if method == "ping":
        return JSONResponse(rpc_success(request_id, {}))
    if method not in ("tools/list", "tools/call"):
        return JSONResponse(rpc_failure(request_id, RpcError(METHOD_NOT_FOUND, f"Method not found: {method:.100}")))
    if isinstance(params, dict):
        params.pop("_meta", None)
        if method == "tools/call" and MCP_SESSION in headers:
            params["session_id"] = headers[MCP_SESSION]
    answer = await answer_rpc(sessions, {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
    result = answer.get("result")
    if result and "is_error" in result:
        answer["result"] = {"content": result["content"], "isError": result["is_error"]}
    return JSONResponse(answer)


async def shake_hands(sessions: EnvironmentSessions, request_id: str | int, params: object) -> Response:
    """Open a session and answer MCP's `initialize` request, with the requested protocol version if it is supported."""
    version = params.get("protocolVersion") if isinstance(params, dict) else None
    session = await sessions.open()
    result = {
        "protocolVersion": version if version in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": sessions.isolation.spec.name, "version": API_VERSION},
    }
    return JSONResponse(rpc_success(request_id, result), headers={MCP_SESSION: session.id})
