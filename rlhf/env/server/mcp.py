"""MCP's streamable HTTP at `/mcp`, for the environment's tools. OpenEnv's validator reads the same JSON-RPC errors."""

from __future__ import annotations

from typing import Any

from rlhf.env.encoding import tool_data
from rlhf.env.server.acting import InvalidToolCall, call_tool, find_tool
from rlhf.env.server.sessions import EnvironmentSession, EnvironmentSessions, Phase
from rlhf.env.wire import API_VERSION, EnvironmentRefused, Json, ResetData

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, SERVER_ERROR = -32600, -32601, -32602, -32000
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Supported revisions of MCP with a handshake, newest first. A client that requests a later one is offered these."""
MCP_SESSION = "mcp-session-id"


class RpcError(Exception):
    """A call that receives an error response."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def answer_mcp(sessions: EnvironmentSessions, body: Json, session_id: str | None) -> tuple[Json | None, Json]:
    """Return the response to one message, None for a notification, and the response's headers.

    The handshake opens a session; DELETE or its lease ends it.
    """
    request_id, headers = body.get("id"), dict[str, str]()
    if request_id is None and isinstance(body.get("method"), str):
        return None, headers
    answer: Json = {"jsonrpc": "2.0", "id": request_id if isinstance(request_id, str | int) else None}
    try:
        match body:
            case {"method": "initialize", "id": str() | int()}:
                headers[MCP_SESSION] = (await sessions.open()).id
                answer["result"] = greeting(sessions, body.get("params"))
            case {"method": str(method), "id": str() | int()}:
                answer["result"] = await perform(sessions, method, body.get("params") or {}, session_id)
            case _:
                raise RpcError(INVALID_REQUEST, "Invalid request: give one message, with id, method and params")
    except RpcError as error:
        answer["error"] = {"code": error.code, "message": str(error)}
    except EnvironmentRefused as refused:
        answer["error"] = {"code": SERVER_ERROR, "message": str(refused), "data": refused.data}
    return answer, headers


def greeting(sessions: EnvironmentSessions, params: object) -> Json:
    """Return the answer to `initialize`, with the requested protocol version if it is supported."""
    version = params.get("protocolVersion") if isinstance(params, dict) else None
    return {
        "protocolVersion": version if version in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": sessions.isolation.spec.name, "version": API_VERSION},
    }


async def perform(sessions: EnvironmentSessions, method: str, params: object, session_id: str | None) -> Json:
    """Return the result of one call. Raises `RpcError`, `EnvironmentRefused`."""
    if method == "ping":
        return {}
    if method == "tools/list":
        tools = [tool_data(tool) for tool in sessions.isolation.spec.tools]
        for tool in tools:
            tool["inputSchema"] = tool.pop("input_schema")
        return {"tools": tools}
    if method != "tools/call":
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method:.100}")
    if not isinstance(params, dict) or not isinstance(params.get("name"), str):
        raise RpcError(INVALID_PARAMS, "Invalid params: give the tool's name")
    try:
        find_tool(sessions.isolation.spec, params["name"])
    except InvalidToolCall as unknown:
        raise RpcError(INVALID_PARAMS, str(unknown)) from None
    if session_id is not None:
        return await call_in(sessions, sessions.find(session_id), params)
    async with sessions.opened() as session:
        return await call_in(sessions, session, params)


async def call_in(sessions: EnvironmentSessions, session: EnvironmentSession, params: dict[str, Any]) -> Json:
    """Return the result of a call. A new session is reset first, because MCP has no reset."""
    if session.phase is Phase.NEW:
        await session.reset(ResetData())
    spec, arguments = sessions.isolation.spec, params.get("arguments") or {}
    observation = (await call_tool(session, spec, params["name"], arguments))["observation"]
    if error := observation["error"]:
        return {"content": [{"type": "text", "text": error["message"]}], "isError": True}
    return {"content": observation["result"]["content"], "isError": False}
