"""MCP's streamable HTTP at `/mcp`, for the environment's tools. OpenEnv's validator reads the same JSON-RPC errors."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from rlhf.env.encoding import tool_data
from rlhf.env.server.acting import NOT_FOUND, call_tool, error_of_call
from rlhf.env.server.sessions import EnvironmentSessions, Phase
from rlhf.env.wire import API_VERSION, EnvironmentRefused, Json, ResetData

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
SERVER_ERROR, UNSUPPORTED_VERSION = -32000, -32022
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Supported revisions of MCP with a handshake, newest first. A client that requests a later one is offered these."""
MCP_SESSION, MCP_VERSION = "mcp-session-id", "mcp-protocol-version"
"""Headers."""


class RpcError(Exception):
    """A call that receives an error response, with this HTTP `status` and `others` in addition to code and message."""

    def __init__(self, code: int, message: str, status: int = 200, **others: Any) -> None:
        super().__init__(message)
        self.code, self.status, self.others = code, status, others


async def answer_mcp(
    sessions: EnvironmentSessions, body: Json, session_id: str | None, version: str | None
) -> tuple[int, Json | None, dict[str, str]]:
    """Return the HTTP status of the response to one message, its body, None for a notification, and its headers. The
    handshake opens a session, which DELETE or its lease ends, and agrees on the protocol `version`."""
    request_id, status, headers = body.get("id"), 200, dict[str, str]()
    answer: Json = {"jsonrpc": "2.0", "id": request_id if isinstance(request_id, str | int) else None}
    try:
        if body.get("method") != "initialize":
            if version not in (None, *VERSIONS):
                data = {"supported": VERSIONS, "requested": version}
                raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", 400, data=data)
            if session_id is not None:
                sessions.find(session_id)  # raises for an unknown session
        match body:
            case {"method": "initialize", "id": str() | int()}:
                headers[MCP_SESSION] = (await sessions.open()).id
                params = body.get("params")
                wanted = params.get("protocolVersion") if isinstance(params, dict) else None
                answer["result"] = {
                    "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {"listChanged": False}},
                    "serverInfo": {"name": sessions.isolation.spec.name, "version": API_VERSION},
                }
            case {"method": str(method), "id": str() | int()}:
                answer["result"] = await perform(sessions, method, body.get("params") or {}, session_id)
            case {"method": str()} if request_id is None:
                return 202, None, headers
            case _:
                raise RpcError(INVALID_REQUEST, "Invalid request: give one message, with id, method and params")
    except RpcError as error:
        status, answer["error"] = error.status, {"code": error.code, "message": str(error)} | error.others
    except EnvironmentRefused as refused:
        status = 404 if refused.status == 404 else 200
        answer["error"] = {"code": SERVER_ERROR, "message": str(refused), "data": refused.data}
    return status, answer, headers


async def perform(sessions: EnvironmentSessions, method: str, params: object, session_id: str | None) -> Json:
    """Return the result of one call. Raises `RpcError`, `EnvironmentRefused`."""
    if method == "ping":
        return {}
    if method == "tools/list":
        tools = [tool_data(tool) for tool in sessions.isolation.spec.tools]
        for tool in tools:
            tool["inputSchema"] = {"type": "object"} | tool.pop("input_schema")
        return {"tools": tools}
    if method != "tools/call":
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method:.100}")
    if not isinstance(params, dict) or not isinstance(params.get("name"), str):
        raise RpcError(INVALID_PARAMS, "Invalid params: give the tool's name")
    name, arguments = params["name"], params.get("arguments") or {}
    if error := error_of_call(sessions.isolation.spec, name, arguments):
        if error["error_type"] == NOT_FOUND:
            raise RpcError(INVALID_PARAMS, error["message"])
        return {"content": [{"type": "text", "text": error["message"]}], "isError": True}
    async with sessions.opened() if session_id is None else nullcontext(sessions.find(session_id)) as session:
        if session.phase is Phase.NEW:  # MCP has no reset
            await session.reset(ResetData())
        answer = await call_tool(session, name, arguments)
    return {"content": answer["observation"]["result"]["content"], "isError": False}
