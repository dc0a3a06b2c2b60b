"""OpenEnv, unmodified: its validator and client on our server, our client and checks on its server."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from benchmarks.environment.command import OPENENV_SERVER
from rlhf.env.check import check_server
from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import EnvironmentFailed
from rlhf.types import Message, Task
from tests.ecosystem.venvs import environment, python, run
from tests.env.faulty import proxied
from tests.env.serving import comes_to, served

START_SECONDS = 60
STOP_SECONDS = 30


@contextlib.contextmanager
def started(words: Callable[[int], Sequence[str]], env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of a server whose command, for a port, is `words`. It ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(words(port), env=env) as process:
        try:
            yield when_healthy(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            finally:
                process.kill()


def when_healthy(url: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return url
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not start within {START_SECONDS} s")


pytestmark = pytest.mark.ecosystem
TASK = Task(id="task", messages=())


def stock(max_sessions: int, program: Path = OPENENV_SERVER, *arguments: str) -> contextlib.AbstractContextManager[str]:
    """A server of OpenEnv's own; that of the benchmark has episodes of three steps."""
    words = [str(python("openenv")), str(program)]
    return started(lambda port: [*words, str(port), str(max_sessions), *(arguments or ("3",))], environment())


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def test_its_validator_passes_all_six_criteria_on_our_server():
    with served("Guess") as url:
        words = [str(python("openenv").parent / "openenv"), "validate", "--url", url, "--json"]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment())
    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert [one["passed"] for one in report["criteria"]] == [True] * 6


def test_its_asynchronous_client_plays_and_is_told_what_was_wrong():
    with served("Guess") as url:
        question, first, refused, second, steps = run("openenv", "openenv_client.py", "async", url)
    assert question.startswith("seed-3: ")
    assert "VALIDATION_ERROR" in refused
    assert (first, second, steps) == ({"left": 2}, {"left": 1}, 2)


def test_its_synchronous_client_plays_an_episode_to_its_end():
    with served("Guess") as url:
        question, done, truncated = run("openenv", "openenv_client.py", "sync", url)
    assert question.startswith("seed-3: ")
    assert (done, truncated) == ([False, False, True], True)


def test_its_client_hears_that_there_is_no_place():
    with served("Guess", max_sessions=1) as url:
        assert "CAPACITY_REACHED" in run("openenv", "openenv_client.py", "capacity", url)


async def test_our_client_plays_an_episode_on_its_server():
    with stock(max_sessions=4) as url:
        environments = await EnvironmentPool.connect([Address(url=url)])
        episodes = []
        for _ in range(2):
            environment = await environments.open("s")
            first = await environment.reset(TASK, seed=7)
            episodes.append([first, *[await environment.step(say("x" * n)) for n in (1, 2, 3)]])
            await environment.close()
    assert episodes[0] == episodes[1]
    assert [said.reward for said in episodes[0]] == [None, 1.0, 2.0, 3.0]
    assert [said.messages[0].content for said in episodes[0][1:]] == ["x", "xx", "xxx"]
    assert [said.terminated for said in episodes[0]] == [False, False, False, True]


async def test_at_its_capacity_our_client_waits_for_a_place():
    with stock(max_sessions=1) as url:
        environments = await EnvironmentPool.connect([Address(url=url)], Patience(deadlines=Deadlines(open_seconds=20)))
        for _ in range(3):
            environment = await environments.open("s")
            await environment.reset(TASK, seed=1)
            await environment.close()


async def test_a_step_that_is_lost_on_its_server_is_a_failure_and_not_tried_again():
    with stock(max_sessions=4) as url:
        fates = ["pass"]
        async with proxied(url, lambda _: fates[0]) as proxy:
            environments = await EnvironmentPool.connect([Address(url=proxy.url)])
            environment = await environments.open("s")
            await environment.reset(TASK, seed=1)
            fates[0] = "drop"
            with pytest.raises(EnvironmentFailed) as failed:
                await environment.step(say("x"))
            await environment.close()
    assert failed.value.kind == "lost"


async def test_its_server_passes_every_check_that_applies_to_it():
    with stock(max_sessions=4) as url:
        found = [one async for one in check_server(Address(url=url))]
    assert all(one.passed for one in found), found


@pytest.mark.parametrize("version", ["mcp1", "mcp2"])
async def test_a_client_of_mcp_calls_our_tools(version: str):
    with served("Adder", lease_seconds=5.0) as url:
        assert run(version, f"{version}_client.py", url) == [["add"], "5", True]
        assert await comes_to(url, 0)
