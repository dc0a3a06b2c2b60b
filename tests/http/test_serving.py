"""A server beside other work starts, says where it is, speaks TLS, and ends: in time, or by force."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from websockets.asyncio.client import connect

from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.threads import ThreadIsolation
from rlhf.env.server.app import EnvironmentServerSettings, environment_uvicorn_config
from rlhf.errors import DeadlinePassed, UserError
from rlhf.http import serving as module
from rlhf.http.serving import bound, listening, url_of
from tests.http.certificates import self_signed
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


async def test_with_a_certificate_a_server_speaks_tls_only_websockets_included(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    isolation = ThreadIsolation(Factory(name="tests.env.environments:Guess", arguments={}), Deadlines())
    await isolation.start()
    settings = EnvironmentServerSettings(port=0, token="secret", access=tls)
    known, bearer = ssl.create_default_context(cafile=tls.certificate), {"Authorization": "Bearer secret"}
    async with listening(environment_uvicorn_config(isolation, settings)) as url:
        assert url.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=known, trust_env=False) as client:
            assert (await client.get(f"{url}/health")).status_code == 200
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get(url)
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(url.replace("https", "http"))
        where = f"{url.replace('https', 'wss')}/ws"
        async with connect(where, ssl=known, proxy=None, additional_headers=bearer) as socket:
            await socket.send('{"type": "reset", "data": {"seed": 3}}')
            assert '"observation"' in await socket.recv()
    await isolation.stop()
