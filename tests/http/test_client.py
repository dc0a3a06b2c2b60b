"""Calls of real servers: retries, deadlines, a limit at once, and a name for every failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf.errors import HttpFailed
from rlhf.http.client import HttpClient
from rlhf.http.config import HttpConfig
from rlhf.tracing import SpanIds, within
from tests.fakes import exporting_to
from tests.pace import scaled
from tests.servers import DROP, HANG, Asked, Reply, nobody, response, scripted

QUICK: dict[str, Any] = {"initial_backoff_seconds": 0.001, "max_backoff_seconds": 0.01}


def client(url: str, *, timeout_seconds: float = 5.0, token: str | None = None, **config: Any) -> HttpClient:
    return HttpClient(url, HttpConfig(**(QUICK | config)), timeout_seconds=timeout_seconds, token=token)


def one_after_the_other(*replies: Reply) -> Any:
    left: Iterator[Reply] = iter(replies)
    return lambda asked: next(left)


async def failure(asking: HttpClient) -> HttpFailed:
    with pytest.raises(HttpFailed) as caught:
        await asking.post("/", {})
    await asking.close()
    return caught.value


async def test_an_answer_is_its_json_and_the_token_travels() -> None:
    async with scripted(lambda asked: (200, {"got": asked.json})) as server:
        asking = client(server.url, token="secret")
        assert await asking.post("/x", {"n": "é\ud800"}) == {"got": {"n": "é\ufffd"}}
        await asking.close()
    assert server.asked[0].path == "/x"
    assert server.asked[0].headers["authorization"] == "Bearer secret"


async def test_a_request_hands_on_the_span_that_it_is_in() -> None:
    async with scripted(lambda asked: (200, 1)) as server:
        asking = client(server.url)
        with within(exporting_to([], SpanIds(0xABC, 0xDEF))):
            await asking.post("/", {})
        await asking.post("/", {})
        await asking.close()
    handed_on = [asked.headers.get("traceparent") for asked in server.asked]
    assert handed_on == [f"00-{0xABC:032x}-{0xDEF:016x}-01", None]


@pytest.mark.parametrize("fault", [DROP, (500, "oops"), (502, "oops"), (408, "slow"), (429, "full"), (503, "full")])
async def test_a_failure_that_may_pass_is_tried_again(fault: Reply) -> None:
    async with scripted(one_after_the_other(fault, fault, (200, 7))) as server:
        asking = client(server.url)
        assert await asking.post("/", {}) == 7
        assert len(server.asked) == 3
        await asking.close()


async def test_a_busy_server_sets_the_pause_within_the_longest_one() -> None:
    full = response(503, b"full", retry_after="3600")
    async with scripted(one_after_the_other(full, (200, 7))) as server:
        asking, began = client(server.url, max_backoff_seconds=0.3), time.monotonic()
        assert await asking.post("/", {}) == 7
        assert time.monotonic() - began >= 0.3
        await asking.close()


@pytest.mark.parametrize(
    ("reply", "kind", "attempts"),
    [
        ((500, "no"), "server", 3),
        ((503, "no"), "busy", 3),
        ((404, "no"), "rejected", 1),
        ((302, "no"), "rejected", 1),
        ((401, "no"), "denied", 1),
        (DROP, "lost", 3),
        (response(200, b"<html>"), "protocol", 1),
        (response(200, b""), "protocol", 1),
        (response(200, b"[" * 100_000), "protocol", 1),
        (b"nonsense\r\n\r\n", "lost", 3),
        (HANG, "timeout", 3),
    ],
)
async def test_every_way_to_fail_has_a_name(reply: Reply, kind: str, attempts: int) -> None:
    async with scripted(lambda asked: reply) as server:
        failed = await failure(client(server.url, timeout_seconds=scaled(0.5), attempts=3))
        assert (failed.kind, len(server.asked)) == (kind, attempts)
        assert server.url in str(failed)


async def test_a_server_that_dribbles_for_ever_is_a_timeout() -> None:
    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.01)

    async with await asyncio.start_server(dribble, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await failure(client(url, timeout_seconds=0.2, attempts=1))).kind == "timeout"


async def test_a_server_that_states_its_capacity_never_gets_more() -> None:
    async def slow(asked: Asked) -> Reply:
        if asked.method == "GET":
            return 200, {"status": "healthy", "capacity": 2}
        await asyncio.sleep(0.01)
        return 200, 1

    async with scripted(slow) as server:
        asking = client(server.url)
        await asking.meet()
        await asyncio.gather(*(asking.post("/", n) for n in range(12)))
        assert server.most_inside == 2
        await asking.close()


async def test_a_server_that_is_not_there_is_found_at_the_start() -> None:
    asking = client(nobody(), attempts=2)
    for question in (asking.meet(), asking.post("/", {})):
        with pytest.raises(HttpFailed, match="refused"):
            await question
    await asking.close()


async def test_a_call_that_is_given_up_frees_its_place() -> None:
    async with scripted(lambda asked: HANG if asked.json == "hang" else (200, 1)) as server:
        asking = client(server.url, concurrency=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asking.post("/", "hang")
        assert await asking.post("/", "next") == 1
        await asking.close()
