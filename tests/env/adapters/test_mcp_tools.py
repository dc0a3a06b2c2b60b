"""The tools of a real MCP server on loopback are called over its wire."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    METHOD_NOT_FOUND,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlhf.env.adapters.mcp_tools import EPISODE, McpToolsEnvironment
from rlhf.errors import DeadlinePassed, EnvironmentFailed
from rlhf.images import IMAGE_MARK
from rlhf.types import Message, Observation, Task, ToolCall
from tests.env.environments import picture
from tests.env.serving import served

pytestmark = pytest.mark.engine

QUESTION = Task(id="0", messages=(Message(role="user", content="What is 20 + 22?"),), answer="42")
server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def whoami(context: Context) -> str:
    """Return the id of the episode that asks."""
    meta = context.request_context.meta or {}
    return str(dict(meta).get(EPISODE))


@server.tool()
def nap() -> str:
    """Take some time."""
    time.sleep(5)
    return "rested"


calls: list[str] = []


@server.tool()
def refuses() -> str:
    """Is never allowed."""
    calls.append("refuses")
    raise MCPError(METHOD_NOT_FOUND, "not on Sundays")


@server.tool()
def reads() -> list[ContentBlock]:
    """Return resources."""
    inside = TextResourceContents(uri="file:///a.txt", text="what a says")
    return [
        EmbeddedResource(resource=inside),
        ResourceLink(uri="file:///b.txt", name="b"),
    ]


@server.tool()
def paints(side: int, whole: bool = True) -> list[ContentBlock]:
    """Return a picture."""
    data = base64.b64encode(picture(0, side).data[: None if whole else 100]).decode()
    words = TextContent(text=f"a {IMAGE_MARK} is a mark")
    return [words, ImageContent(data=data, mime_type="image/png"), TextContent(text="b")]


@server.tool()
def floods() -> str:
    """Say a lot."""
    return "begin" + "x" * 100_000 + "end"


@server.custom_route("/broken", methods=["POST"])
async def broken(request: Request) -> Response:
    """An MCP server whose calls end in what is no JSON-RPC."""
    asked = await request.json()
    if asked["method"] == "tools/call":
        calls.append("broken")
        name, text = asked["params"]["name"], '{"detail": "down"}'
        return Response(text, int(name), media_type="application/json")
    if "id" not in asked:
        return Response(status_code=202)
    info = {"capabilities": {"tools": {}}, "protocolVersion": "2025-06-18", "serverInfo": {"name": "b", "version": ""}}
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("200", "404", "422", "503")]
    known = {"initialize": info, "tools/list": {"tools": tools}}.get(asked["method"])
    answer = {"result": known} if known else {"error": {"code": METHOD_NOT_FOUND, "message": "?"}}
    return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], **answer})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="warning"))
    thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    running.should_exit = True
    thread.join(20)


def call(environment: McpToolsEnvironment, name: str, **arguments: object) -> Observation:
    asked = ToolCall(id="c7", name=name, arguments=arguments)
    return environment.step(Message(role="assistant", content="", tool_calls=(asked,)))


def said(observation: Observation) -> str:
    assert [(message.role, message.tool_call_id) for message in observation.messages] == [("tool", "c7")]
    assert not observation.done
    return observation.messages[0].content


def test_a_question_is_answered_with_a_tool_of_the_server(url: str) -> None:
    environment = McpToolsEnvironment(url, score="rlhf.reward.rules:exact")
    assert environment.reset(QUESTION, seed=0).messages == QUESTION.messages
    assert said(call(environment, "add", a=20, b=22)) == "42"
    end = environment.step(Message(role="assistant", content="42"))
    assert (end.reward, end.terminated) == (1.0, True)


def test_a_picture_of_a_tool_is_shown_in_its_place(url: str) -> None:
    environment = McpToolsEnvironment(url)
    environment.reset(QUESTION, seed=0)
    large = picture(0, 1100)
    assert len(large.data) > 3 * 2**20
    seen = call(environment, "paints", side=1100)
    assert said(seen) == f"a \ufffd is a mark{IMAGE_MARK}b"
    assert seen.messages[0].images == (large,)
    with pytest.raises(EnvironmentFailed, match=r"protocol: .*paints: an image of a tool's result cannot be decoded"):
        call(environment, "paints", side=56, whole=False)


def test_the_server_s_tools_are_offered_with_their_schemas(url: str) -> None:
    tools = {tool.name: tool for tool in McpToolsEnvironment(url).spec.tools}
    assert set(tools) == {"add", "whoami", "nap", "refuses", "reads", "paints", "floods"}
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].parameters["required"] == ["a", "b"]
    assert [tool.name for tool in McpToolsEnvironment(url, only=["add"]).spec.tools] == ["add"]


def test_a_call_that_the_server_refuses_is_answered_and_the_episode_goes_on(url: str) -> None:
    environment = McpToolsEnvironment(url, only=["add"])
    environment.reset(QUESTION, seed=0)
    assert said(call(environment, "add", a="much")).startswith("error: ")
    assert said(call(environment, "nap")) == "error: there is no tool 'nap'; use one of add"
    assert said(call(environment, "add", a=1, b=1)) == "2"


def test_an_error_of_json_rpc_is_the_tools_answer_and_the_tool_runs_once(url: str) -> None:
    environment = McpToolsEnvironment(url)
    environment.reset(QUESTION, seed=0)
    calls.clear()
    assert said(call(environment, "refuses")) == "error: not on Sundays"
    assert calls == ["refuses"]


@pytest.mark.parametrize("name", ["200", "404", "422", "503"])
def test_a_server_that_does_not_answer_with_json_rpc_is_lost(url: str, name: str) -> None:
    environment = McpToolsEnvironment(url.replace("/mcp", "/broken"))
    environment.reset(QUESTION, seed=0)
    with pytest.raises(EnvironmentFailed, match=r"environment mcp: lost: http://.*: MCPError: "):
        call(environment, name)


def test_resources_are_read_with_their_addresses_and_long_results_without_their_middle(url: str) -> None:
    environment = McpToolsEnvironment(url, longest=100)
    environment.reset(QUESTION, seed=0)
    text = "[resource file:///a.txt]\nwhat a says\n[resource_link b file:///b.txt]"
    assert said(call(environment, "reads")) == text
    shown = said(call(environment, "floods"))
    assert (shown[:5], shown[-3:], len(shown) <= 100) == ("begin", "end", True)


def test_a_server_can_tell_episodes_apart(url: str) -> None:
    first, second = McpToolsEnvironment(url), McpToolsEnvironment(url)
    for environment in (first, second):
        environment.reset(QUESTION, seed=0)
    assert said(call(first, "whoami")) == said(call(first, "whoami"))
    assert said(call(first, "whoami")) != said(call(second, "whoami"))


def test_a_tool_that_takes_too_long_passes_the_deadline(url: str) -> None:
    environment = McpToolsEnvironment(url)
    environment.reset(QUESTION, seed=0)
    environment._seconds = 0.5
    with pytest.raises(DeadlinePassed, match=r"did not answer within 0\.5 s"):
        call(environment, "nap")


def test_our_own_server_is_served_to_the_stock_client() -> None:
    with served("Adder") as address:
        environment = McpToolsEnvironment(f"{address}/mcp")
        environment.reset(QUESTION, seed=0)
        assert said(call(environment, "add", a=2, b=3)) == "5"
        assert said(call(environment, "add", a=2)).startswith("error: add: 'b' is a required property")


def test_a_server_that_is_not_there_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EnvironmentFailed, match=f"lost: http://127.0.0.1:{port}/mcp: ConnectError"):
        McpToolsEnvironment(f"http://127.0.0.1:{port}/mcp")
