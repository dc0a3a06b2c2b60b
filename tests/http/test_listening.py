"""A server beside other work starts, says where it is, and ends: in time, or by force."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlhf.errors import DeadlinePassed, UserError
from rlhf.http import listening as module
from rlhf.http.listening import bound, listening, url_of
from tests.pace import scaled


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def config(host: str = "127.0.0.1", port: int = 0, *, starting: float = 0, ending: float = 0) -> uvicorn.Config:
    """Of an application that takes so many seconds to start and to end."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        await asyncio.sleep(starting)
        yield
        await asyncio.sleep(ending)

    app = Starlette(routes=[Route("/", hello)], lifespan=life)
    return uvicorn.Config(app, host=host, port=port, log_level="warning")


@pytest.mark.parametrize(("host", "begins"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
async def test_it_answers_at_its_url_and_nobody_does_after_the_block(host: str, begins: str) -> None:
    async with listening(config(host)) as url, httpx.AsyncClient(trust_env=False) as client:
        assert url.startswith(begins)
        assert (await client.get(url)).text == "hello"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


async def test_an_address_that_is_taken_is_told() -> None:
    with bound("127.0.0.1", 0) as taken:
        port = int(url_of(taken).rpartition(":")[2])
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: "):
            async with listening(config(port=port)):
                pass


async def test_a_server_that_does_not_start_is_a_deadline_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.2)
    monkeypatch.setattr(module, "END_SECONDS", 0.2)
    with pytest.raises(DeadlinePassed, match="the start of a server"):
        async with listening(config(starting=60)):
            pass


async def test_a_server_that_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.5)
    before, began = asyncio.all_tasks(), time.monotonic()
    async with listening(config(ending=60)):
        (serving,) = (task for task in asyncio.all_tasks() - before if task.get_coro().__name__ == "serve")
    assert serving.cancelled()
    assert time.monotonic() - began < scaled(10)
