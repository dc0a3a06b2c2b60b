"""Streams that are silent for long, sessions of known agents, and what clients try before they ask."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from rlhf.errors import GenerateFailed
from rlhf.rollout.endpoint import app
from tests.pace import scaled
from tests.rollout.endpoint.serving import scripted, served

GO = [{"role": "user", "content": "go"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": GO},
    "/v1/completions": {"prompt": "go"},
    "/v1/responses": {"input": "go"},
    "/v1/messages": {"messages": GO, "max_tokens": 64},
}
WIRES = sorted(BODIES)


def asking() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=scaled(60), limits=httpx.Limits(max_connections=None))


class Slow:
    """An engine that takes half a second, and then answers or fails."""

    def __init__(self, engine: Any, fails: bool = False) -> None:
        self.engine, self.fails, self.cancelled = engine, fails, asyncio.Event()

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.fails:
            raise GenerateFailed("scripted", "s", "the engine broke")
        return await self.engine.generate(*args, **kwargs)


@pytest.mark.parametrize("path", WIRES)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_silent_stream_is_kept_alive(path: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "KEEP_ALIVE_SECONDS", 0.1)
    async with served(Slow(scripted("one"), fails)) as server, asking() as client:
        answer = await client.post(f"{server.url}{path}", json=BODIES[path] | {"stream": True})
        again = await client.get(f"{server.url}/health")
    alive = "event: ping" if "messages" in path else ": keep-alive"
    assert answer.status_code == 200
    assert answer.text.count(alive) >= 2
    assert ("the engine broke" in answer.text) == fails
    assert again.status_code == 200


@pytest.mark.parametrize("path", WIRES)
async def test_a_client_that_leaves_a_kept_stream_cancels_its_reply(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "KEEP_ALIVE_SECONDS", 0.05)
    engine = Slow(scripted("one"))
    async with served(engine) as server, asking() as client:
        async with client.stream("POST", f"{server.url}{path}", json=BODIES[path] | {"stream": True}) as answer:
            async for _ in answer.aiter_bytes():
                break
        await asyncio.wait_for(engine.cancelled.wait(), 5)
        server.front.close()
    assert server.kept == []


@pytest.mark.parametrize("header", ["session-id", "x-claude-code-session-id", "x-session-id"])
async def test_requests_of_an_agents_own_session_are_one_episode(header: str) -> None:
    async with served(scripted("one", "two", "three")) as server, asking() as client:
        for number, key in enumerate("aba"):
            asked = {"input": f"unrelated {number}"}
            answer = await client.post(f"{server.url}/v1/responses", json=asked, headers={header: key})
            assert answer.status_code == 200
        server.front.close()
    assert sorted(len(trajectory.segments) for trajectory, _ in server.kept) == [1, 2]


async def test_the_address_models_and_keys_of_anthropic_are_answered_and_an_unknown_response_opens_no_session() -> None:
    async with served(scripted("one"), token="k") as server, asking() as client:
        key = {"x-api-key": "k"}
        assert (await client.head(f"{server.url}/", headers=key)).status_code == 200
        model = (await client.get(f"{server.url}/v1/models/a/b", headers=key)).json()
        assert (model["id"], model["type"], model["object"]) == ("a/b", "model", "model")
        assert (await client.get(f"{server.url}/v1/models", headers={"x-api-key": "no"})).status_code == 401
        body = {"input": "x", "previous_response_id": "resp_no"}
        answer = await client.post(f"{server.url}/v1/responses", json=body, headers=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert len(server.sessions) == 0
