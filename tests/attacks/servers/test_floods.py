"""Clients without a token who send much, or slowly, or all at once: the memory stays, and others are answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.attacks.servers.at_once import QUICK
from tests.attacks.servers.corpus import HOST, KIND, bearer, posted
from tests.attacks.servers.raw import Attacked, answer_to, attacked, status_of
from tests.pace import scaled

pytestmark = pytest.mark.waits
MIB = 2**20
MOST_GROWTH = 64 * MIB
TOKEN = "secret"
PIECE = b"a" * 65536


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    limits = QUICK | {"connections": 400, "waiting_bytes": 48 * MIB}
    with attacked(
        tmp_path_factory.mktemp("flooded"), ["environment", "sandbox"], token=TOKEN, limits=limits
    ) as servers:
        yield servers


class Watch:
    """What a server has in memory at most, and how long an honest client waits at most."""

    def __init__(self, servers: Attacked) -> None:
        self._servers, self.most_bytes, self.slowest = servers, 0, 0.0

    async def go_on(self) -> None:
        health = b"GET /metadata HTTP/1.1\r\n" + HOST + bearer(TOKEN) + b"\r\n"
        while True:
            began = time.monotonic()
            assert status_of(await answer_to(self._servers.ports["environment"], health)) == 200
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.most_bytes = max(self.most_bytes, self._servers.resident_bytes)
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def steady(servers: Attacked, growth: int = MOST_GROWTH) -> AsyncIterator[None]:
    """The block costs the servers no memory to speak of, and meanwhile others are answered in time."""
    before, watch = servers.resident_bytes, Watch(servers)
    watching = asyncio.create_task(watch.go_on())
    yield
    assert not watching.done(), watching.result()
    watching.cancel()
    watch.most_bytes = max(watch.most_bytes, servers.resident_bytes)
    assert watch.most_bytes - before <= growth
    assert watch.slowest <= scaled(3.0)


async def pour(port: int, head: bytes, piece: bytes, most: int) -> bytes:
    """Send `piece` again and again, as much as is taken; what came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(scaled(10)):
            with contextlib.suppress(ConnectionError):
                writer.write(head)
                for _ in range(most // len(piece)):
                    writer.write(piece)
                    await writer.drain()
            with contextlib.suppress(ConnectionError):
                return await reader.read(65536)
        return b""
    finally:
        writer.transport.abort()


async def test_bodies_without_a_token_are_not_read(servers: Attacked) -> None:
    head = b"POST %s HTTP/1.1\r\n" + HOST + KIND + b"Content-Length: 62914560\r\n\r\n"
    async with steady(servers):
        doors = (("environment", b"/health"), ("sandbox", b"/health"), ("sandbox", b"/run_code")) * 4
        told = await asyncio.gather(*(pour(servers.ports[name], head % path, PIECE, 60 * MIB) for name, path in doors))
    assert {status_of(one) for one in told} <= {None, 401, 413}


@pytest.mark.parametrize(
    ("begins", "piece"),
    [(b"a: ", PIECE), (b"", b"a: b\r\n" * 10_000), (b"", b"\r\n" * 30_000)],
    ids=["one header of 86 MiB", "millions of headers", "empty lines"],
)
async def test_headers_without_end_are_cut_off(servers: Attacked, begins: bytes, piece: bytes) -> None:
    request = b"" if piece.startswith(b"\r\n") else b"GET /health HTTP/1.1\r\n" + HOST + begins
    async with steady(servers):
        told = await asyncio.gather(*(pour(servers.ports["environment"], request, piece, 86 * MIB) for _ in range(3)))
    assert {status_of(one) for one in told} <= {None, 431}


async def test_requests_without_answers_do_not_pile_up(servers: Attacked) -> None:
    request = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
    async with steady(servers):
        told = await asyncio.gather(*(pour(servers.ports["environment"], b"", request * 1000, MIB) for _ in range(20)))
    assert any(b"429" in one or status_of(one) is None for one in told)


async def test_three_hundred_requests_that_are_half_sent_are_given_up(servers: Attacked) -> None:
    heads = (b"GET /health HTTP/1.1\r\n" + HOST, b"", b"POST /reset HTTP/1.1\r\n" + HOST + KIND + bearer(TOKEN))
    heads += (heads[2] + b"Content-Length: 9\r\n\r\n{",)
    async with steady(servers):
        began = time.monotonic()
        told = await asyncio.gather(*(answer_to(servers.ports["environment"], heads[n % 4]) for n in range(300)))
    assert [status_of(one) for one in told] == [408, None, 408, 408] * 75
    assert time.monotonic() - began < scaled(5)


async def test_for_one_connection_too_many_the_one_that_rests_longest_goes(servers: Attacked) -> None:
    port = servers.ports["sandbox"]
    everybody = [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
    health = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
    assert status_of(await answer_to(port, health)) == 200
    async with asyncio.timeout(scaled(0.9)):
        with contextlib.suppress(ConnectionError):
            assert await everybody[0][0].read() == b"", "the first to come is the first to go"
    for _, writer in everybody:
        writer.transport.abort()


async def test_five_thousand_headers_hold_nobody_up(servers: Attacked) -> None:
    body = b"{}"
    head = b"POST /reset HTTP/1.1\r\n" + HOST + KIND + bearer(TOKEN) + b"a: b\r\n" * 5000
    began = time.monotonic()
    told = await answer_to(servers.ports["environment"], head + b"Content-Length: 2\r\n\r\n" + body)
    assert status_of(told) == 431
    assert time.monotonic() - began < scaled(2.0)


async def test_programs_that_wait_hold_no_more_than_the_server_lets_them(servers: Attacked) -> None:
    files = {f"file-{number}": "QUJD" * 250_000 for number in range(5)}
    body = json.dumps({"code": "import time; time.sleep(0.1)", "files": files}).encode()
    async with steady(servers, 256 * MIB):
        asked = [answer_to(servers.ports["sandbox"], posted("/run_code", body, token=TOKEN)) for _ in range(20)]
        told = await asyncio.gather(*asked)
    statuses = [status_of(one) for one in told]
    assert {200} < set(statuses) <= {200, 408, 503}, "on a busy machine bodies may also be late"
    assert statuses.count(200) <= 48 * MIB // len(body) + 6, "a few are answered before the last have come"
