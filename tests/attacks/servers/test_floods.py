"""Clients without a token that send much at once: the memory stays, and a valid client is answered."""

from __future__ import annotations

import asyncio
import time

import httpx
import psutil
import pytest

from tests.attacks.servers.applications import environment_server, status_of
from tests.attacks.servers.corpus import GET, HOST, POST
from tests.pace import scaled

MIB = 2**20
MOST_GROWTH = 64 * MIB
PIECE = b"a" * 65536
BODY = b"Content-Length: %d\r\n\r\n" % (60 * MIB)


async def slowest_answer(url: str, flood: asyncio.Future[list[int | None]]) -> tuple[float, int]:
    """Seconds that a valid client waited at most, and the most memory in bytes, for as long as the flood."""
    slowest, most, process = 0.0, 0, psutil.Process()
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer secret"}, trust_env=False) as client:
        while not flood.done():
            began = time.monotonic()
            assert (await client.get("/metadata", timeout=60)).status_code == 200
            slowest, most = max(slowest, time.monotonic() - began), max(most, process.memory_info().rss)
            await asyncio.sleep(0.02)
    return slowest, most


@pytest.mark.waits
async def test_a_flood_without_a_token_costs_no_memory_and_holds_up_no_valid_client() -> None:
    async with environment_server(token="secret") as url:
        before = psutil.Process().memory_info().rss
        floods = [status_of(url, POST + BODY, PIECE, 960) for _ in range(6)]
        floods += [status_of(url, POST.replace(b"/reset", b"/health") + BODY, PIECE, 960) for _ in range(6)]
        floods += [status_of(url, GET + HOST + b"a: ", PIECE, 960) for _ in range(3)]
        floods += [status_of(url, GET + HOST, b"a: b\r\n" * 10_000, 960) for _ in range(3)]
        floods += [status_of(url, b"", (GET + HOST + b"\r\n") * 1000, 20) for _ in range(10)]
        flood = asyncio.gather(*floods)
        slowest, most = await slowest_answer(url, flood)
    assert set((await flood)[:12]) <= {401, None}
    assert set((await flood)[12:18]) <= {400, None}
    assert most - before <= MOST_GROWTH
    assert slowest <= scaled(3.0)


async def test_beyond_its_connections_a_server_refuses_requests_and_recovers() -> None:
    async with environment_server(connections=10) as url:
        port = int(url.rpartition(":")[2])
        resting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        assert await status_of(url, GET + HOST + b"\r\n") == 503
        for _, writer in resting:
            writer.close()
            await writer.wait_closed()
        assert await status_of(url, GET + HOST + b"\r\n") == 200
