"""Malformed and hostile requests on each wire: an error in the wire's own shape, and the session goes on."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from tests.pace import scaled
from tests.rollout.endpoint.serving import scripted, served

USER = {"role": "user", "content": "go"}
FORGED = "x\r\n2026-01-01 00:00:00 INFO forged\u2028line"
DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP]
RAW = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": ' + b"[" * 5000, b'{"model": "m"}', b'"text"']
"""Bodies that are no request on any wire."""
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages) or [USER], **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "go", **fields}


def responses(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": list(items) or "go", **fields}


BODIES: dict[str, list[Any]] = {
    "/chat/completions": [
        chat(max_tokens=0), chat(max_tokens="many"), chat(n=2), chat(top_logprobs=5), chat(messages=[]),
        chat({"role": FORGED, "content": "x"}), chat({"role": "user", "content": [IMAGE]}), chat(DEEP),
        chat({"role": "user", "content": 5}), chat({"role": "assistant", "tool_calls": [{}]}),
        chat({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
        chat(tools=[{"type": "function"}]), chat(tools=[{"function": {"name": FORGED, "parameters": 7}}]),
        chat(tools="all"), chat(stop=[1]), chat(functions=[{"name": "f"}]), chat(audio={"voice": "a"}),
    ],
    "/completions": [
        {"prompt": ""}, {"prompt": []}, {"prompt": [[]]}, {"prompt": 7}, {"prompt": {"text": "x"}}, {"prompt": [-1]},
        {"prompt": [10**9]}, {"prompt": [10**30]}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt": [1, "a"]},
        {"prompt": ["a"]}, completion(echo=True), completion(best_of=2), completion(n=2), completion(suffix="x"),
        completion(logprobs=0), completion(logprobs=5), completion(max_tokens=0), completion(stop=[1]),
    ],
    "/responses": [
        responses(max_output_tokens=0), responses(max_output_tokens="many"), responses(input=[]), responses(input=7),
        responses(background=True), responses(conversation="c"), responses(prompt={"id": "p"}),
        responses({"role": FORGED, "content": "x"}), responses({"role": "user", "content": [IMAGE]}), responses(DEEP),
        responses({"type": "function_call", "name": "f"}), responses({"type": FORGED}),
        responses({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}),
        responses({"type": "function_call_output", "call_id": "c"}), responses(tools=[{"name": "no type"}]),
        responses(previous_response_id="resp_of_somebody"), responses(previous_response_id=FORGED),
    ],
    "/messages": [
        chat(max_tokens=0), chat(max_tokens="many"), chat(messages=[]), chat(messages={}), chat(DEEP),
        chat({"role": "tool", "content": "x"}), chat({"role": FORGED, "content": "x"}), chat({"role": "user"}),
        chat({"role": "user", "content": [IMAGE]}), chat({"role": "user", "content": [{"type": FORGED}]}),
        chat({"role": "user", "content": [{"type": "text", "text": 5}]}), chat(system=7), chat(system=[IMAGE]),
        chat({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}), chat(stop_sequences=[1]),
        chat({"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "{"}]}),
        chat(tools=[{"description": "no name"}]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
async def test_each_is_refused_in_the_wire_s_own_shape(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bodies = [*RAW, *(json.dumps(body).encode() for body in BODIES[path])]
    assert len(bodies) >= 25
    async with served(scripted("fine")) as server, httpx.AsyncClient(trust_env=False, timeout=scaled(30)) as asking:
        session = (await asking.post(f"{server.url}/sessions")).json()
        url = session["base_url"] + path
        for body in bodies:
            answer = await asking.post(url, content=body, headers={"content-type": "application/json"})
            assert 400 <= answer.status_code < 500, (body[:80], answer.text[:200])
            error = answer.json()["error"]
            assert error["message"].strip()
            assert path != "/messages" or answer.json()["type"] == "error"
            assert len(answer.text) < 1000, "the body is not repeated"
        good = {"/responses": responses(), "/completions": completion()}.get(path, chat(max_tokens=9))
        assert (await asking.post(url, json=good)).status_code == 200
        ended = await asking.post(f"{server.url}/sessions/{session['id']}/end", json={"reward": 1})
        assert ended.json()["replies"] == 1
    assert not [record for record in caplog.records if "\nforged" in record.getMessage() or "\r" in record.getMessage()]
