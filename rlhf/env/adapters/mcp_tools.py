"""Environment with the tools of an MCP server. The task provides the question, and scores the answer."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from rlhf.chat.shown import Shown, shown
from rlhf.env.adapters.imports import imported
from rlhf.env.encoding import part_shown
from rlhf.env.tool_use import Handled, RefusedCall, ToolUseEnvironment, shortened_shown
from rlhf.env.wire import Undecodable
from rlhf.errors import DeadlinePassed, EnvironmentFailed
from rlhf.types import Observation, Task, Tool

TOOLS = 1024
"""Maximum number of tools of a server."""
EPISODE = "rlhf/episode"
"""The key of a call's `_meta` that carries the episode's id: MCP has no sessions since 2026-07-28."""


class McpToolsEnvironment(ToolUseEnvironment):
    """Asks the task's question, with the tools of the MCP server at `url` (streamable HTTP); a reply without calls ends
    the episode. The policy reads every result of a tool, errors included, `longest` characters in all. Every call opens
    a new connection, so a server distinguishes episodes by `_meta`. `score` is as in `SingleTurnEnvironment`. Raises
    `DeadlinePassed` after `seconds`, and `EnvironmentFailed` of kind `lost` when the server is unreachable."""

    def __init__(
        self,
        url: str,
        *,
        only: Sequence[str] | None = None,
        seconds: float = 30.0,
        score: str | None = None,
        longest: int = 16_000,
    ) -> None:
        self._longest = longest
        self._mcp, self._connect = imported("mcp"), imported("rlhf.env.adapters.mcp_transport").connect
        self._url, self._seconds = url, seconds
        tools = [tool for tool in self._run(self._list) if only is None or tool.name in only]
        handled = [Handled(tool=tool, run=functools.partial(self._call, tool.name)) for tool in tools]
        super().__init__("mcp", f"A question, and {len(tools)} tools", handled, score)

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._episode = uuid4().hex
        return super().reset(task, seed=seed)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Shown:
        meta = {EPISODE: self._episode}
        result = self._run(lambda client: client.call_tool(name, dict(arguments), meta=meta))
        try:
            parts = [part_shown(part) for part in result.model_dump(mode="json", by_alias=True)["content"]]
        except Undecodable as error:
            raise EnvironmentFailed("mcp", "protocol", f"{self._url}: {name}: {error}") from None
        if not any(parts):
            parts = [json.dumps(result.structured_content)]  # which may be all that it has
        told = shown(parts)
        return shortened_shown(replace(told, text=f"error: {told.text}") if result.is_error else told, self._longest)

    async def _list(self, client: Any) -> list[Tool]:
        tools: list[Tool] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [
                Tool(name=tool.name, description=tool.description or "", parameters=tool.input_schema)
                for tool in page.tools
            ]
            if len(tools) > TOOLS:
                raise EnvironmentFailed("mcp", "protocol", f"{self._url} lists more than {TOOLS} tools")
            if (cursor := page.next_cursor) is None:
                return tools

    def _run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return the result of `work` with a new connection. Raises `RefusedCall` for a call that the server answers
        with a JSON-RPC error, `DeadlinePassed`, `EnvironmentFailed`."""
        transport, http, bounded = self._connect(self._url, self._seconds)

        async def within() -> Any:
            async with asyncio.timeout(self._seconds), http, self._mcp.Client(transport, cache=None) as client:
                return await work(client)

        try:
            return asyncio.run(within())
        except TimeoutError:
            raise DeadlinePassed(f"the MCP server {self._url}", self._seconds) from None
        except ExceptionGroup as several:  # raised by the client when its connection is lost
            cause: BaseException = several
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            if isinstance(cause, self._mcp.MCPError) and bounded.sent_error(cause.code):
                raise RefusedCall(f"{cause!s:.{self._longest}}") from None
            kind = "protocol" if isinstance(cause, (ValueError, RuntimeError)) else "lost"  # an invalid result stays so
            raise EnvironmentFailed("mcp", kind, f"{self._url}: {type(cause).__name__}: {cause}") from cause
