"""The server over HTTP: requests without memory, MCP, leases, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.threads import ThreadIsolation
from rlhf.env.server.mcp import MCP_SESSION, MCP_VERSION
from rlhf.env.server.sessions import EnvironmentSessions
from rlhf.env.wire import EnvironmentRefused
from rlhf.protocols import Environment
from tests.env.serving import active, comes_to, quick, served, talking
from tests.pace import scaled

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    with served("Guess") as url:
        yield url


@pytest.fixture(scope="module")
def adder() -> Iterator[str]:
    with served("Adder") as url:
        yield url


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=scaled(20)) as client:
        yield client


async def rpc(
    http: httpx.AsyncClient, url: str, method: str, session: str | None = None, **params: Any
) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return await http.post(f"{url}/mcp", json=body, headers={MCP_SESSION: session} if session else {})


async def test_a_server_says_what_it_is(http: httpx.AsyncClient, guess: str):
    assert (await http.get(f"{guess}/health")).json() == {"status": "healthy"}
    metadata = (await http.get(f"{guess}/metadata")).json()
    assert (metadata["name"], metadata["description"]) == ("guess", "Guess a number from 1 to 9.")
    schema = (await http.get(f"{guess}/schema")).json()
    assert schema["action"]["required"] == ["text"]
    assert schema["action"]["title"] == "Reply"  # an `Action` is taken for tools alone by verifiers
    assert {"messages", "text", "role", "tools"} <= set(schema["observation"]["properties"])
    assert (await http.get(f"{guess}/list_environments")).json() == ["guess"]
    document = (await http.get(f"{guess}/openapi.json")).json()
    assert document["info"]["version"] == "1.0.0"
    assert {"ErrorResponse", "McpErrorResponse"} <= set(document["components"]["schemas"]), "errors have a body, too"


async def test_without_a_session_each_request_stands_alone_and_leaves_nothing(http: httpx.AsyncClient, guess: str):
    reset = (await http.post(f"{guess}/reset", json={"seed": 3})).json()
    step = (await http.post(f"{guess}/step", json={"action": {"text": "none"}})).json()
    assert reset["observation"]["text"].startswith("seed-3: ")
    assert step["metadata"]["info"] == {"left": 2}
    assert (await http.get(f"{guess}/state")).json() == {"episode_id": None, "step_count": 0}
    assert await active(guess) == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/step", {"action": {}}, 422, "VALIDATION_ERROR"),
        ("/step", {}, 422, "VALIDATION_ERROR"),
        ("/reset", {"seed": "one"}, 422, "VALIDATION_ERROR"),
        ("/reset", b"{", 400, "INVALID_JSON"),
        ("/reset", b"\xff", 400, "INVALID_JSON"),
        ("/step", {"action": {"text": "x" * 2**20}}, 413, "VALIDATION_ERROR"),
    ],
)
async def test_a_bad_body_is_answered_with_its_code(
    http: httpx.AsyncClient, guess: str, path: str, body: object, status: int, code: str
):
    content = (
        {"content": body, "headers": {"content-type": "application/json"}}
        if isinstance(body, bytes)
        else {"json": body}
    )
    answer = await http.post(f"{guess}{path}", **content)
    assert (answer.status_code, answer.json()["detail"]["code"]) == (status, code)


async def test_an_unknown_path_is_answered_with_those_that_exist(http: httpx.AsyncClient, guess: str):
    answer = await http.post(f"{guess}/v1/chat/completions", json={})
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("there is no /v1/chat/completions; this server has GET /health, ")
    assert "POST /reset" in answer.json()["detail"]


async def test_at_capacity_http_says_when_to_come_back(http: httpx.AsyncClient):
    with served("Guess", max_sessions=1) as url:
        async with talking(url):
            full = await http.post(f"{url}/reset", json={})
            over_mcp = (await rpc(http, url, "initialize")).json()
    assert (full.status_code, full.headers["retry-after"]) == (503, "1")
    assert full.json()["detail"]["code"] == "CAPACITY_REACHED"
    assert over_mcp["error"]["code"] == -32000


async def test_a_session_is_freed_when_its_lease_ends(http: httpx.AsyncClient):
    with served("Guess", lease_seconds=0.5) as url:
        await rpc(http, url, "initialize")
        assert await active(url) == 1
        assert await comes_to(url, 0)


async def test_a_newer_socket_takes_a_session_over(http: httpx.AsyncClient, guess: str):
    session = (await rpc(http, guess, "initialize")).headers[MCP_SESSION]
    async with talking(guess, f"?session_id={session}") as talk:
        await talk.reset(seed=1)
        await talk.step("none")
        async with talking(guess, f"?session_id={session}") as second:
            step = await second.step("none")
            with pytest.raises(ConnectionClosed):
                await talk.hear()
    assert step["data"]["metadata"]["info"] == {"left": 1}
    assert (await http.delete(f"{guess}/mcp", headers={MCP_SESSION: session})).status_code == 204


class Slow(ThreadIsolation):
    async def open(self, session: str) -> Environment:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")


async def test_a_session_that_is_being_opened_is_not_opened_twice() -> None:
    sessions = EnvironmentSessions(Slow(Factory(name="a:B"), Deadlines()), max_sessions=2, lease_seconds=60)
    first = asyncio.create_task(sessions.find_or_open("mine"))
    await asyncio.sleep(0)
    with pytest.raises(EnvironmentRefused, match="Session mine is being opened"):
        await sessions.find_or_open("mine")
    first.cancel()


async def test_an_environment_that_raises_or_hangs_has_its_status(http: httpx.AsyncClient):
    with served("Moody", deadlines=quick(0.5)) as url:
        for text, status, kind in (("raise", 500, "raised"), ("hang", 504, "timeout")):
            answer = await http.post(f"{url}/step", json={"action": {"text": text}})
            assert (answer.status_code, answer.json()["detail"]["kind"]) == (status, kind)
        assert await active(url) == 0


@pytest.mark.parametrize("word", ["bytes", "cycle", "long"])
async def test_an_observation_that_cannot_be_sent_is_answered_so(http: httpx.AsyncClient, word: str):
    with served("Moody") as url:
        answer = await http.post(f"{url}/step", json={"action": {"text": word}})
        async with talking(url) as talk:
            await talk.reset()
            frame = await talk.step(word)
            assert (await talk.step("raise"))["type"] == "error", "the socket stays open"
    told = [answer.json()["detail"], frame["data"]]
    assert answer.status_code == 500
    assert [one["kind"] for one in told] == ["protocol", "protocol"]
    assert all(
        one["message"].startswith(("protocol: data that JSON cannot", "protocol: a message of ")) for one in told
    )


async def test_an_mcp_client_shakes_hands_and_calls_within_its_session(http: httpx.AsyncClient, adder: str):
    hello = await rpc(http, adder, "initialize", protocolVersion="2025-06-18", capabilities={})
    session = hello.headers[MCP_SESSION]
    told = await http.post(f"{adder}/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    listed = await rpc(http, adder, "tools/list", session)
    called = await rpc(http, adder, "tools/call", session, name="add", arguments={"a": 4, "b": 4})
    invalid = await rpc(http, adder, "tools/call", session, name="add", arguments={"a": 2})
    ended = await http.delete(f"{adder}/mcp", headers={MCP_SESSION: session})
    assert hello.json()["result"]["protocolVersion"] == "2025-06-18"
    assert listed.json()["result"]["tools"][0]["inputSchema"]["type"] == "object"
    assert [set(tool) for tool in listed.json()["result"]["tools"]] == [{"name", "description", "inputSchema"}]
    assert called.json()["result"] == {"content": [{"type": "text", "text": "8"}], "isError": False}
    assert invalid.json()["result"]["isError"] is True
    assert (told.status_code, ended.status_code) == (202, 204)
    alone = await rpc(http, adder, "tools/call", name="add", arguments={"a": 2, "b": 3})
    assert alone.json()["result"]["content"] == [{"type": "text", "text": "5"}]
    assert await active(adder) == 0


async def test_a_tool_without_parameters_takes_an_object(http: httpx.AsyncClient) -> None:
    with served("Tooled", arguments={"parameters": {}}) as url:
        [tool] = (await rpc(http, url, "tools/list")).json()["result"]["tools"]
    assert tool["inputSchema"] == {"type": "object"}


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "ping", "notifications/initialized"])
async def test_a_session_that_is_over_is_not_found_by_mcp(http: httpx.AsyncClient, adder: str, method: str):
    session = (await rpc(http, adder, "initialize")).headers[MCP_SESSION]
    assert (await rpc(http, adder, "ping", session)).status_code == 200
    await http.delete(f"{adder}/mcp", headers={MCP_SESSION: session})
    answer = await rpc(http, adder, method, session, name="add", arguments={"a": 1, "b": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32000)


@pytest.mark.parametrize(
    ("version", "status"), [("2025-03-26", 200), ("2025-11-25", 200), ("2026-07-28", 400), ("1.0", 400), ("ü", 400)]
)
async def test_a_version_is_negotiated_in_the_handshake_and_refused_after_it(
    http: httpx.AsyncClient, adder: str, version: str, status: int
):
    hello = await rpc(http, adder, "initialize", protocolVersion=version)
    agreed = hello.json()["result"]["protocolVersion"]
    assert agreed == (version if status == 200 else "2025-11-25")
    headers = {MCP_VERSION: version.encode(), MCP_SESSION: hello.headers[MCP_SESSION]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    answer = await http.post(f"{adder}/mcp", json=body, headers=headers)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["code"] == -32022
        assert "2025-11-25" in answer.json()["error"]["data"]["supported"]
    await http.delete(f"{adder}/mcp", headers={MCP_SESSION: hello.headers[MCP_SESSION]})


@pytest.mark.parametrize("body", [b"hello", b'"text"', b"[]", b"5", b"null", b"", b"\xff", b'{"id": 1e999}'])
async def test_a_body_that_is_no_message_is_the_clients_error(http: httpx.AsyncClient, adder: str, body: bytes):
    headers = {"content-type": "application/json"}
    assert (await http.post(f"{adder}/mcp", content=body, headers=headers)).status_code in (400, 422)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, -32600),
        ({"method": "ping", "id": []}, -32600),
        ({"method": "jump", "id": 1}, -32601),
        ({"method": "tools/call", "id": 1}, -32602),
        ({"method": "tools/call", "params": {"name": "subtract"}, "id": 1}, -32602),
    ],
)
async def test_a_bad_call_is_a_json_rpc_error(http: httpx.AsyncClient, adder: str, body: object, code: int):
    answer = await http.post(f"{adder}/mcp", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, code)
