"""Any answer over HTTP gives a client of ours data that can be written, or a failure with a name, in time."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlhf.config import build
from rlhf.env.chat_opponent import ChatOpponent
from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import EnvironmentFailed, HttpFailed, OpponentFailed, SandboxBroken, SandboxBusy
from rlhf.http.client import HttpClient
from rlhf.http.config import HttpConfig, RecordingConfig
from rlhf.reward.config import RewardConfig
from rlhf.reward.judge_prompt import mark_of, parse_choice
from rlhf.reward.reward import make_reward
from rlhf.sandbox.client import RemoteSandbox
from rlhf.sandbox.program import Program
from rlhf.types import Scored, Task, Unscored
from tests.attacks.peers.answers import BOMBS, CHAT, JSON, METADATA, REWARDS, RUN, SCHEMA, every_answer, spoilt
from tests.attacks.peers.server import Heard, Parts, answering, harm_of, ok, saying
from tests.pace import scaled
from tests.reward.asked import TASK, replies

SECONDS = 3.0
"""What a client is given for one question."""
Ask = Callable[[str], Coroutine[Any, Any, Heard]]
"""Asks the server at a URL once, and raises nothing."""


def asking_reward(**values: Any) -> Ask:
    async def ask(url: str) -> Heard:
        (kind, settings), *_ = values.items()
        keys = {"kind": kind, kind: {"url": url} | settings, "http": {"attempts": 1}, "timeout_seconds": SECONDS}
        reward = make_reward(build(RewardConfig, keys))
        scores = await reward(TASK, replies("a", "b"))
        await reward.close()
        assert len(scores) == 2
        for score in scores:
            assert isinstance(score, Scored | Unscored)
            assert isinstance(score, Unscored) or (type(score.value) is float and math.isfinite(score.value))
        heard = [score.value if isinstance(score, Scored) else [score.kind, score.detail] for score in scores]
        return {"scores": heard}

    return ask


async def ask_opponent(url: str, seconds: float = 0.2) -> Heard:
    opponent = ChatOpponent(url=url, model="m", seconds=seconds)
    try:
        reply = await asyncio.to_thread(opponent.seat(Task(id="0", messages=()), random.Random(0)), "your move")
    except OpponentFailed as failed:
        return {"failed": str(failed)}
    assert isinstance(reply, str)
    return {"reply": reply}


async def ask_sandbox(url: str) -> Heard:
    sandbox = RemoteSandbox(url, timeout_seconds=SECONDS)
    try:
        run = await sandbox.run(Program(code="\ud800", wall_seconds=1.0))
    except (SandboxBroken, SandboxBusy) as broken:
        return {"failed": str(broken)}
    finally:
        await sandbox.close()
    assert 0 <= run.seconds < math.inf
    assert isinstance(run.return_code, int | None)
    return {"out": run.stdout, "err": run.stderr, "detail": run.detail, "files": sorted(run.files)}


async def ask_environment(url: str, seconds: float = 0.1) -> Heard:
    """Ask a server for its spec. A failure that may pass is asked again, until the deadline."""
    patience = Patience(deadlines=Deadlines(open_seconds=seconds), tries=1)
    try:
        spec = (await EnvironmentPool.connect([Address(url=url, token="t")], patience)).spec
    except EnvironmentFailed as failed:
        return {"failed": str(failed)}
    assert all(isinstance(role, str) for role in spec.roles)
    tools = [[tool.name, tool.description, dict(tool.parameters)] for tool in spec.tools]
    return {"name": spec.name, "description": spec.description, "roles": list(spec.roles), "tools": tools}


CLIENTS: dict[str, Ask] = {
    "reward": asking_reward(remote={"api": "openrlhf"}),
    "judge": asking_reward(judge={"model": "m"}),
    "opponent": ask_opponent,
    "sandbox": ask_sandbox,
    "environment": ask_environment,
}
RIGHT: dict[str, tuple[Ask, Any]] = {
    **{api: (asking_reward(remote={"api": api}), right) for api, right in REWARDS.items()},
    "judge": (CLIENTS["judge"], CHAT),
    "pairs": (asking_reward(judge={"model": "m", "mode": "pairwise"}), CHAT),
    "opponent": (ask_opponent, CHAT),
    "sandbox": (ask_sandbox, RUN),
    "metadata": (ask_environment, METADATA),
    "schema": (ask_environment, SCHEMA),
}
"""Right answers, and who asks for them. A server's metadata is its schema here too."""


async def harm(ask: Ask, answers: dict[str, Parts], folder: Path, longest: float = SECONDS) -> dict[str, str]:
    return await harm_of(ask, answers, folder, scaled(longest + 1.0))


@pytest.mark.parametrize("client", CLIENTS)
async def test_no_answer_over_http_ends_a_run(client: str, tmp_path: Path) -> None:
    assert await harm(CLIENTS[client], every_answer(), tmp_path) == {}


@pytest.mark.parametrize("client", RIGHT)
async def test_no_answer_that_is_nearly_right_is_taken_for_one(client: str, tmp_path: Path) -> None:
    """A number is a number, a text is a text, or the answer has a fault by name."""
    ask, right = RIGHT[client]
    answers: dict[str, Parts] = {name: ok(text, JSON) for name, text in list(spoilt(right).items())[::13]}
    assert await harm(ask, answers, tmp_path) == {}


def test_the_right_answers_are_taken() -> None:
    """Else all of the above would prove nothing."""
    patient = {"opponent": partial(ask_opponent, seconds=20), "metadata": partial(ask_environment, seconds=20)}
    heard = {}
    for client in ("openrlhf", "judge", "opponent", "sandbox", "metadata"):
        ask, right = RIGHT[client]
        with answering(saying(ok(json.dumps(right).encode(), JSON))) as url:
            heard[client] = asyncio.run(patient.get(client, ask)(url))
    assert not [client for client, answer in heard.items() if "failed" in answer]
    assert heard["judge"] == {"scores": [0.7, 0.7]}
    assert heard["openrlhf"] == {"scores": [0.5, ["timeout", "late"]]}


async def get(talk: Any, times: int = 1, **settings: Any) -> None:
    """One client of ours asks a server that talks like this."""
    with answering(talk) as url:
        client = HttpClient(url, HttpConfig(attempts=1), timeout_seconds=20, **settings)
        try:
            for _ in range(times):
                await client.get("/")
        finally:
            await client.close()


async def test_a_compressed_answer_does_not_unfold(tmp_path: Path) -> None:
    settings = RecordingConfig(path=str(tmp_path / "tape"), mode="record")
    tracemalloc.start()
    with pytest.raises(HttpFailed, match="protocol: the answer is compressed"):
        await get(saying(ok(BOMBS, "content-encoding: gzip")), recording=settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


async def test_an_answer_is_kept_as_far_as_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.http.client.ANSWER_BYTES", 2**20)
    with pytest.raises(HttpFailed, match="longer than 1048576 bytes"):
        await get(saying([b"HTTP/1.1 200 OK\r\n\r\n", *[b" " * 2**19] * 400], 0.0))


async def test_cookies_are_not_kept_and_not_sent() -> None:
    heads: list[bytes] = []

    def talk(connection: Any) -> None:
        heads.append(connection.recv(65536).lower())
        connection.sendall(ok(b"{}", "set-cookie: a=b; Path=/", "content-length: 2"))

    await get(talk, times=3)
    assert len(heads) == 3
    assert all(b"cookie" not in head and b"accept-encoding: identity" in head for head in heads)


async def test_a_token_is_not_carried_elsewhere() -> None:
    seen: list[bytes] = []
    with answering(lambda connection: seen.append(connection.recv(65536))) as other:
        moved = f"HTTP/1.1 307 X\r\nlocation: {other}/\r\ncontent-length: 0\r\n\r\n".encode()
        with pytest.raises(HttpFailed, match="307"):
            await get(saying(moved), token="secret")
        with answering(saying(moved)) as url:
            assert "failed" in await ask_environment(url)
            assert "failed" in await ask_sandbox(url)
    assert seen == []


def test_a_judges_blanks_are_read_in_time() -> None:
    began = time.monotonic()
    for text in ("verdict:" + " " * 2_000_000 + "x", "verdict: \n" * 300_000, "verdict:1" + ".1" * 500_000 + "x"):
        mark_of(text, 0, 10)
        parse_choice(text)
    assert time.monotonic() - began < scaled(5)
