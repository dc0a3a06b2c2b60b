"""Requests that make no sense are refused by name, and a server answers valid ones afterwards."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.attacks.servers.applications import APPLICATIONS, client_of, environment_server, status_of
from tests.attacks.servers.corpus import HONEST, HTTP, JSON, OF_SERVERS, PATHS


def post(client: TestClient, path: str, body: bytes) -> httpx.Response:
    return client.post(path, content=body, headers={"Content-Type": "application/json"})


def refuses(answer: httpx.Response) -> bool:
    """Whether an answer is a 4xx, or an error of JSON-RPC."""
    return 400 <= answer.status_code < 500 or (answer.status_code == 200 and '"error":{' in answer.text)


def assert_well(client: TestClient, name: str) -> None:
    """The server answers every valid request."""
    for path, body in HONEST[name]:
        answer = post(client, path, json.dumps(body).encode())
        assert answer.status_code == 200 or "send a reset" in answer.text, answer.text


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_body_that_makes_no_sense_is_refused(name: str) -> None:
    with client_of(name) as client:
        bodies = [(path, body) for path in PATHS[name] for body in JSON.values()]
        bodies = [row for row in bodies if row not in (("/reset", b""), ("/reset", b"null"))]  # a reset without wishes
        bodies += [(path, json.dumps(body).encode()) for path, body in OF_SERVERS[name]]
        answers = [(path, body[:80], post(client, path, body)) for path, body in bodies]
        assert [(path, body, answer.text[:200]) for path, body, answer in answers if not refuses(answer)] == []
        assert_well(client, name)


DEEP_CALL = '{"type":"call_tool","tool_name":"add","arguments":"' + "[" * 9000 + '"}'
FRAMES = {
    "no JSON": "{", "bytes": b"\xff\xfe", "a list": "[]", "a type that is a list": '{"type": []}',
    "an unknown type": '{"type": "jump"}', "deep": "[" * 50_000,
    "deep arguments": f'{{"type":"step","data":{DEEP_CALL}}}',
    "an integer of 5,000 digits": '{"type": "reset", "data": {"seed": ' + "1" * 5000 + "}}",
    "a surrogate as a tool": r'{"type":"step","data":{"type":"call_tool","tool_name":"\ud800"}}',
    "a step before a reset": '{"type": "step", "data": {"text": "5"}}', "too long": " " * (2**20 + 1),
}  # fmt: skip


def test_a_frame_that_makes_no_sense_is_answered_with_an_error() -> None:
    with client_of("environment") as client:
        for name, frame in FRAMES.items():
            with client.websocket_connect("/ws", headers={"host": "localhost"}) as socket:
                socket.send_bytes(frame) if isinstance(frame, bytes) else socket.send_text(frame)
                answer = socket.receive_text()
            assert '"error"' in answer, name
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws", headers={"host": "a.example"}):
            pass
        assert_well(client, "environment")


async def test_bytes_that_are_no_request_are_refused_on_a_real_server(caplog: pytest.LogCaptureFixture) -> None:
    async with environment_server(body_seconds=1) as url:
        statuses = await asyncio.gather(*(status_of(url, sent) for sent in HTTP.values()))
        taken = [name for name, status in zip(HTTP, statuses, strict=True) if status and not 400 <= status < 500]
        assert taken == []
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/health")).status_code == 200
    assert "Traceback" not in caplog.text
