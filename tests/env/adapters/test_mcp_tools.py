"""The tools of a real MCP server on loopback are called over its wire."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from rlhf.env.adapters.mcp_tools import EPISODE, McpToolsEnvironment
from rlhf.errors import DeadlinePassed, EnvironmentFailed
from rlhf.types import Message, Observation, Task, ToolCall

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


def test_the_server_s_tools_are_offered_with_their_schemas(url: str) -> None:
    tools = {tool.name: tool for tool in McpToolsEnvironment(url).spec.tools}
    assert set(tools) == {"add", "whoami", "nap"}
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].parameters["required"] == ["a", "b"]
    assert [tool.name for tool in McpToolsEnvironment(url, only=["add"]).spec.tools] == ["add"]


def test_a_call_that_the_server_refuses_is_answered_and_the_episode_goes_on(url: str) -> None:
    environment = McpToolsEnvironment(url, only=["add"])
    environment.reset(QUESTION, seed=0)
    assert said(call(environment, "add", a="much")).startswith("error: ")
    assert said(call(environment, "nap")) == "error: there is no tool 'nap'; there are: add"
    assert said(call(environment, "add", a=1, b=1)) == "2"


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


def test_a_server_that_is_not_there_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EnvironmentFailed, match=f"lost: http://127.0.0.1:{port}/mcp: ConnectError"):
        McpToolsEnvironment(f"http://127.0.0.1:{port}/mcp")
