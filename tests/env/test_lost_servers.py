"""Servers that are killed, stopped and started again during a run: no episode is lost, and they are used again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Never, cast
from urllib.parse import urlsplit

import httpx
import pytest

from rlhf.env.client.dialect import Dialect
from rlhf.env.client.pool import EnvironmentPool, RemoteServer
from rlhf.env.client.remote import Address, Patience
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import EnvironmentFailed, WorkerDied
from rlhf.types import Message, Task
from tests.commanded import commanded
from tests.env.fated import RETURN
from tests.env.looping import run_to_the_end
from tests.env.serving import active
from tests.pace import scaled

pytestmark = pytest.mark.engine
UPDATES = 8
TASK = Task(id="0", messages=())


def patience(step_seconds: float = 20) -> Patience:
    seconds = scaled(step_seconds)
    return Patience(
        deadlines=Deadlines(open_seconds=scaled(60), reset_seconds=seconds, step_seconds=seconds), pause_seconds=0.01
    )


def counting(log: Path) -> tuple[object, ...]:
    log.touch()
    return ("env", "tests.env.fated:Fated", "--arguments", f'{{"log": "{log}", "fates": []}}')


async def comes(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(scaled(60)):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_server_that_is_killed_and_started_again_costs_no_episode(others: int, tmp_path: Path) -> None:
    told: list[str] = []
    words = counting(tmp_path / "log")
    with ExitStack() as stack:
        url, process = stack.enter_context(commanded(*words))
        urls = [url, *(stack.enter_context(commanded(*words))[0] for _ in range(others))]
        pool = await EnvironmentPool.connect([Address(url=one) for one in urls], patience(), told.append)
        running = asyncio.create_task(run_to_the_end(pool, tmp_path / "run", UPDATES))
        await comes(lambda: active(url))
        process.kill()
        process.wait(scaled(20))

        async def gone() -> bool:
            return bool(told)

        await comes(gone)
        stack.enter_context(commanded(*words, port=urlsplit(url).port or 0))
        books = await running
        books.check(UPDATES, RETURN)
        assert books.failures == {}

        async def used_again() -> int:
            sessions = [await pool.open(str(number)) for number in range(len(urls))]
            used = await active(url)
            for session in sessions:
                await session.close()
            return used

        await comes(used_again)
        await pool.close()
    assert [url in words for words in told] == [True, True]
    assert ["answers again" in words for words in told] == [False, True]


async def test_a_server_that_hangs_is_lost_as_one_that_is_gone(tmp_path: Path) -> None:
    with commanded(*counting(tmp_path / "log")) as (url, process):
        pool = await EnvironmentPool.connect([Address(url=url)], patience(1.5))
        environment = await pool.open("s")
        await environment.reset(TASK, seed=0)
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(EnvironmentFailed, match="lost: no answer to step"):
                await environment.step(Message(role="assistant", content="x"))
            await environment.close()
        finally:
            process.send_signal(signal.SIGCONT)
        await (await pool.open("next")).close()
        await pool.close()


async def test_a_keeper_that_fails_ends_all_that_open_sessions() -> None:
    async def keeper() -> Never:
        raise WorkerDied("environment-0", "killed by SIGKILL; 3 starts of a replacement failed: no room")

    pool = EnvironmentPool([cast(RemoteServer, SimpleNamespace(spec=None))])
    pool.keep(keeper())
    await asyncio.sleep(0)
    with pytest.raises(WorkerDied, match="no room"):
        await pool.open("s")
    await pool.close()


@pytest.mark.parametrize("error", [httpx.ConnectError(""), httpx.DecodingError(""), httpx.TooManyRedirects("")])
async def test_no_error_of_http_ends_the_questions_whether_a_server_answers(
    error: httpx.HTTPError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(http: httpx.AsyncClient) -> Never:
        raise error

    monkeypatch.setattr("rlhf.env.client.pool.fetch_dialect", fetch)
    server = RemoteServer(Address(url="http://127.0.0.1:9"), cast(Dialect, SimpleNamespace(spec=None)), patience())
    assert not await server.answers()
