"""Environment with the tools of an MCP server. The task provides the question, and scores the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from rlhf.env.adapters.imports import imported
from rlhf.env.single_turn import concluded, score_of
from rlhf.errors import DeadlinePassed, EnvironmentFailed
from rlhf.types import EnvironmentSpec, Message, Observation, Task, Tool, ToolCall

TOOLS = 1024
"""Maximum number of tools of a server."""
EPISODE = "rlhf/episode"
"""The key of a call's `_meta` that carries the episode's id: MCP has no session of its own since 2026-07-28."""


class McpToolsEnvironment:
    """Asks the task's question, with the tools of the MCP server at `url` (streamable HTTP); a reply without calls ends
    the episode.

    The policy reads every result of a tool, errors included, as MCP specifies. Every step opens a new connection, so a
    server distinguishes episodes by `_meta`. `score` is as in `SingleTurnEnvironment`. Raises `DeadlinePassed` after
    `seconds`, and `EnvironmentFailed` of kind `lost` when the server is unreachable.
    """

    def __init__(
        self, url: str, *, only: Sequence[str] | None = None, seconds: float = 30.0, score: str | None = None
    ) -> None:
        self._mcp, self._reached = imported("mcp"), imported("rlhf.env.adapters.mcp_transport").reached
        self._url, self._seconds, self._score = url, seconds, score_of(score)
        listed = asyncio.run(self._within(self._listed()))
        tools = tuple(tool for tool in listed if only is None or tool.name in only)
        self.spec = EnvironmentSpec(name="mcp", description=f"A question, and {len(tools)} tools", tools=tools)

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._task, self._episode = task, uuid4().hex
        return Observation(messages=task.messages)

    def step(self, action: Message) -> Observation:
        if not action.tool_calls:
            return concluded(action, self._task, self._score)
        return Observation(messages=asyncio.run(self._within(self._called(action.tool_calls))))

    def close(self) -> None:
        """No resources to free: no connection outlives a step."""

    async def _within(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                return await work
        except TimeoutError:
            raise DeadlinePassed(f"the MCP server {self._url}", self._seconds) from None
        except ExceptionGroup as several:  # raised by the client when its connection is lost
            cause = first_failure(several)
            raise EnvironmentFailed("mcp", "lost", f"{self._url}: {type(cause).__name__}: {cause}") from cause

    async def _listed(self) -> list[Tool]:
        tools: list[Tool] = []
        cursor = None
        async with self._connected() as client:
            while True:
                page = await client.list_tools(cursor=cursor)
                tools += [as_tool(tool) for tool in page.tools]
                if len(tools) > TOOLS:
                    raise EnvironmentFailed("mcp", "protocol", f"{self._url} lists more than {TOOLS} tools")
                if (cursor := page.next_cursor) is None:
                    return tools

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        transport, http = self._reached(self._url, self._seconds)
        async with http, self._mcp.Client(transport, cache=None) as client:
            yield client

    async def _called(self, calls: Sequence[ToolCall]) -> tuple[Message, ...]:
        async with self._connected() as client:
            return tuple([await self._answered(client, call) for call in calls])

    async def _answered(self, client: Any, call: ToolCall) -> Message:
        offered = [tool.name for tool in self.spec.tools]
        if call.name not in offered:
            text = f"error: there is no tool {call.name!r}; there are: {', '.join(offered)}"
        else:
            text = result_text(await client.call_tool(call.name, dict(call.arguments), meta={EPISODE: self._episode}))
        return Message(role="tool", content=text, tool_call_id=call.id)


def first_failure(several: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first failure of an exception group, at any depth."""
    first = several.exceptions[0]
    return first_failure(first) if isinstance(first, BaseExceptionGroup) else first


def as_tool(listed: Any) -> Tool:
    """Return a tool from MCP's tool list."""
    return Tool(name=listed.name, description=listed.description or "", parameters=listed.input_schema)


def result_text(result: Any) -> str:
    """Return the text of a result; parts that are not text are represented by their kind."""
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    text = "\n".join(parts) or json.dumps(result.structured_content)
    return f"error: {text}" if result.is_error else text
