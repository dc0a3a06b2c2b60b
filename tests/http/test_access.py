"""The access middleware in process: which requests reach an application, and the refusals of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Scope

from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import Access, HttpLimits
from rlhf.tracing import within
from tests.fakes import exporting_to

MOST = 1000
JSON = {"Content-Type": "application/json"}
RIGHT, WRONG = {"Authorization": "Bearer secret"}, {"Authorization": "Bearer wrong"}


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


APP = Starlette(routes=[Route(path, length, methods=["GET", "POST"]) for path in ("/", "/health")])


def guarded(token: str | None = None, seconds: int = 60) -> AccessMiddleware:
    access = Access(names=("Known.Example",), limits=HttpLimits(body_bytes=MOST, body_seconds=seconds))
    return AccessMiddleware(APP, lambda status, why: {"status": status, "why": why}, access, token=token)


async def answer(
    method: str = "GET", path: str = "/", token: str | None = None, seconds: int = 60, **request: Any
) -> httpx.Response:
    transport = httpx.ASGITransport(guarded(token, seconds))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        return await client.request(method, path, **request)


async def pieces(count: int) -> AsyncIterator[bytes]:
    """A body that is sent piece by piece, without a stated length."""
    for _ in range(count):
        yield b"x" * 100


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_the_limit_arrives_and_a_longer_one_is_refused_in_the_servers_words(chunked: bool) -> None:
    whole = await answer("POST", headers=JSON, content=pieces(10) if chunked else b"x" * MOST)
    longer = await answer("POST", headers=JSON, content=pieces(11) if chunked else b"x" * (MOST + 1))
    assert (whole.status_code, whole.text) == (200, str(MOST))
    assert (longer.status_code, longer.json()) == (413, {"status": 413, "why": f"the body is longer than {MOST} bytes"})


@pytest.mark.parametrize(
    ("header", "continues"),
    [
        (f"00-{7:032x}-{8:016x}-01", True),
        (f"01-{7:032x}-{8:016x}-03-more", True),
        (f"00-{7:032x}-{8:016x}-00", False),  # its process does not export it
        (f"00-{0:032x}-{8:016x}-01", False),
        (f"00-{7:032x}-{0:016x}-01", False),
        ("00-7-8-01", False),
        ("", False),
    ],
)
async def test_a_request_with_a_trace_is_a_span_in_it(header: str, continues: bool) -> None:
    ended: list[Any] = []
    with within(exporting_to(ended)):
        assert (await answer(headers={"traceparent": header})).status_code == 200
    assert [(span.name, parent, ids.trace) for span, ids, parent, _ in ended] == [("GET /", (7, 8), 7)] * continues


async def test_a_body_that_does_not_come_is_a_408_and_a_client_that_leaves_gets_nothing() -> None:
    async def late() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    assert (await answer("POST", headers=JSON, content=late(), seconds=1)).status_code == 408

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"5"), (b"content-type", b"application/json")]
    scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    await guarded()(scope, gone, send)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/health", {}, 200), ("GET", "/health", RIGHT, 200), ("GET", "/health", WRONG, 401),
        ("POST", "/health", JSON, 401), ("GET", "/", RIGHT, 200), ("GET", "/", {}, 401), ("GET", "/", WRONG, 401),
        ("GET", "/", {"Authorization": "secret"}, 401), ("GET", "/", {"Authorization": "bearer secret"}, 200),
        ("GET", "/", {"Authorization": "BEARER  secret"}, 200), ("GET", "/", {"Authorization": "Basic secret"}, 401),
    ],
)  # fmt: skip
async def test_a_server_with_a_token_is_open_for_health_only(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    asked = await answer(method, path, token="secret", headers=headers)
    assert (asked.status_code, asked.headers.get("www-authenticate")) == (status, "Bearer" if status == 401 else None)


async def test_different_refusals_are_logged_once_each_and_no_flood_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf.http.access.LOGGED", 2)
    app = guarded("secret")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000") as client:
        for path in ("/health", "/", "/", "/?token=secret", "/\u2028", "/third"):
            await client.get(path)

    async def connect() -> Message:
        return {"type": "websocket.connect"}

    async def ignore(message: Message) -> None: ...

    scope: Scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"localhost")]}
    await guarded("secret")(scope, connect, ignore)
    why = "a valid bearer token is required"
    assert caplog.messages == [
        f'refused: GET /: 401 {{"status":401,"why":"{why}"}}',
        f'refused: GET /\\u2028: 401 {{"status":401,"why":"{why}"}}',
        f"refused: WebSocket /ws: 403 {why}",
    ]


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json5"])
async def test_a_body_that_a_web_page_could_send_without_asking_is_refused(kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    assert (await answer("POST", content=b"{}", headers=headers)).status_code == 415
    assert (await answer("POST", headers=headers)).text == "0", "without a body there is nothing to name"
    named = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await answer("POST", content=b"{}", headers=named)).text == "2"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:1", 200), ("localhost.:80", 200), ("127.9.9.9", 200), ("[::1]:80", 200),
        ("known.example", 200), ("Known.Example:443", 200),
        ("rebound.example", 421), ("127.0.0.1.rebound.example", 421), ("10.1.2.3", 421),
        ("localhost@rebound.example", 421), ("rebound.example,localhost", 421), ("[::1", 421), ("", 421),
    ],
)  # fmt: skip
async def test_a_server_answers_to_its_names_only(host: str, status: int) -> None:
    assert (await answer(headers={"Host": host})).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200), ("null", 403), ("http://foreign.example", 403), ("http://localhost:9", 403),
        ("http://localhost", 403), ("", 403), ("http://localhost:8000.foreign.example", 403),
    ],
)  # fmt: skip
async def test_a_page_of_another_origin_is_refused(origin: str, status: int) -> None:
    assert (await answer(headers={"Origin": origin})).status_code == status


async def test_a_websocket_is_refused_before_its_handshake() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"localhost")], "server": ("h", 1)}
    await guarded("secret")(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
