"""MCP's streamable HTTP at `/mcp`: the same tools for MCP clients, each answer as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse, Response

from rlhf.env.server.rpc import INVALID_REQUEST, METHOD_NOT_FOUND, RpcError, answer_rpc, failure, success
from rlhf.env.server.sessions import EnvironmentSessions
from rlhf.env.wire import API_VERSION, Json

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Supported revisions with a handshake, newest first. A client that requests a later one is offered these."""
SESSION = "mcp-session-id"


def speaks_mcp(accept: str) -> bool:
    """Whether a request's Accept header is that of an MCP client: all others get OpenEnv's JSON-RPC."""
    return "text/event-stream" in accept


async def answer_mcp(sessions: EnvironmentSessions, body: object, headers: Mapping[str, str]) -> Response:
    """The response to one message. The handshake opens a session; DELETE or its lease ends it."""
    if not isinstance(body, dict):
        return JSONResponse(failure(None, RpcError(INVALID_REQUEST, "One message at a time")), status_code=400)
    if "id" not in body:
        return Response(status_code=202)
    method, request_id, params = body.get("method"), body["id"], body.get("params") or {}
    if not isinstance(method, str) or not isinstance(request_id, str | int) or not isinstance(params, dict):
        wrong = "id is text or an integer, method is text, params is an object"
        return JSONResponse(failure(None, RpcError(INVALID_REQUEST, f"Invalid request: {wrong}")), status_code=400)
    if method == "initialize":
        return await shake_hands(sessions, request_id, params.get("protocolVersion"))
    if method == "ping":
        return JSONResponse(success(request_id, {}))
    if method not in ("tools/list", "tools/call"):
        return JSONResponse(failure(request_id, RpcError(METHOD_NOT_FOUND, f"Method not found: {method:.100}")))
    params = {name: value for name, value in params.items() if name != "_meta"}
    if method == "tools/call" and SESSION in headers:
        params["session_id"] = headers[SESSION]
    answer = await answer_rpc(sessions, {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
    return JSONResponse(as_mcp(answer))


async def shake_hands(sessions: EnvironmentSessions, request_id: str | int, asked: object) -> Response:
    """Open a session and answer MCP's `initialize` request, with the requested protocol version if it is supported."""
    session = await sessions.open()
    result = {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": sessions.isolation.spec.name, "version": API_VERSION},
    }
    return JSONResponse(success(request_id, result), headers={SESSION: session.id})


def as_mcp(answer: Json) -> Json:
    """A tool's result in MCP's format."""
    result = answer.get("result")
    if result and "is_error" in result:
        return answer | {"result": {"content": result["content"], "isError": result["is_error"]}}
    return answer
