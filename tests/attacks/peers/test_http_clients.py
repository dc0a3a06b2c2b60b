"""Whatever a server answers over HTTP, a client of ours has data that can be written, or a failure with a name."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from rlhf.config import build
from rlhf.env.adapters.mcp_tools import McpToolsEnvironment
from rlhf.env.client.remote import Address, Patience
from rlhf.env.client.servers import RemoteEnvironments
from rlhf.env.hosting.isolation import Deadlines
from rlhf.env.opponents.chat import ChatOpponent, ChatSettings
from rlhf.errors import DeadlinePassed, EnvironmentFailed, OpponentFailed, RlhfError
from rlhf.http.client import HttpClient
from rlhf.http.config import HttpConfig, RecordingConfig
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.runs.jsonl import JsonlWriter
from rlhf.sandbox.client import RemoteSandbox
from rlhf.sandbox.program import Program, SandboxBroken, SandboxBusy
from rlhf.types import Scored, Task, Unscored
from tests.attacks.peers.bodies import CHAT, METADATA, REWARDS, RUN, SCHEMA, spoilt
from tests.attacks.peers.http_answers import BOMB, BOMBS, JSON, SLOW, every_answer
from tests.attacks.peers.server import Parts, answering, ok, saying
from tests.pace import scaled
from tests.reward.asked import TASK, replies

SECONDS = 3.0
"""What a client is given for one question."""
ONCE = {"attempts": 1, "failure_threshold": 10_000}
Heard = dict[str, Any]


class Asker(Protocol):
    """A client of one server. Asking raises nothing: what it hears can be written, a failure with a name too."""

    async def ask(self) -> Heard: ...
    async def close(self) -> None: ...


class AskedReward:
    def __init__(self, kind: str, **keys: Any) -> None:
        values = {"kind": kind, "http": ONCE, "timeout_seconds": SECONDS} | keys
        self._reward = make_reward(build(RewardConfig, values))

    async def ask(self) -> Heard:
        scores = await self._reward(TASK, replies("a", "b"))
        assert len(scores) == 2
        for score in scores:
            assert isinstance(score, Scored | Unscored)
            if isinstance(score, Scored):
                assert type(score.value) is float
                assert math.isfinite(score.value)
        return {
            "scores": [score.value if isinstance(score, Scored) else [score.kind, score.detail] for score in scores]
        }

    async def close(self) -> None:
        await self._reward.close()


def asked_reward(shape: str) -> Callable[[str], Asker]:
    return lambda url: AskedReward("remote", remote={"url": url, "api": shape})


def asked_judge(mode: str) -> Callable[[str], Asker]:
    return lambda url: AskedReward("judge", judge={"url": url, "model": "m", "mode": mode})


class AskedOpponent:
    def __init__(self, url: str, seconds: float = 0.2) -> None:
        self._opponent = ChatOpponent(ChatSettings(url=url, model="m", seconds=seconds))

    async def ask(self) -> Heard:
        player = self._opponent.seat(Task(id="0", messages=()), random.Random(0))
        try:
            said = await asyncio.to_thread(player, "your move")
        except OpponentFailed as failed:
            return {"failed": str(failed)}
        assert isinstance(said, str)
        return {"said": said}

    async def close(self) -> None:
        """Its connections are its process's."""


class AskedSandbox:
    def __init__(self, url: str) -> None:
        self._sandbox = RemoteSandbox(url, wait_seconds=SECONDS - 1)

    async def ask(self) -> Heard:
        try:
            run = await self._sandbox.run(Program(code="\ud800", wall_seconds=1.0))
        except (SandboxBroken, SandboxBusy) as broken:
            return {"failed": str(broken)}
        assert 0 <= run.seconds < math.inf
        assert isinstance(run.return_code, int | None)
        return {"out": run.stdout, "err": run.stderr, "detail": run.detail, "files": sorted(run.files)}

    async def close(self) -> None:
        await self._sandbox.close()


class AskedEnvironment:
    """What a server says of itself. What may pass is asked again, until the deadline."""

    def __init__(self, url: str, seconds: float = 0.1) -> None:
        self._address, self._seconds = Address(url=url, token="t"), seconds

    async def ask(self) -> Heard:
        patience = Patience(deadlines=Deadlines(open_seconds=self._seconds), tries=1)
        try:
            spec = (await RemoteEnvironments.connect(self._address, patience)).spec
        except EnvironmentFailed as failed:
            return {"failed": str(failed)}
        assert all(isinstance(role, str) for role in spec.roles)
        tools = [[tool.name, tool.description, dict(tool.parameters)] for tool in spec.tools]
        return {"name": spec.name, "description": spec.description, "roles": list(spec.roles), "tools": tools}

    async def close(self) -> None:
        """Nothing is held."""


class AskedTools:
    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self) -> Heard:
        try:
            spec = (await asyncio.to_thread(McpToolsEnvironment, self._url, seconds=SECONDS)).spec
        except (EnvironmentFailed, DeadlinePassed) as failed:
            return {"failed": str(failed)}
        return {"tools": [tool.name for tool in spec.tools]}

    async def close(self) -> None:
        """Nothing is held."""


NAMED = {"opponent": AskedOpponent, "environment": AskedEnvironment}
"""Those that can be told how long to wait."""
CLIENTS: dict[str, Callable[[str], Asker]] = {
    "reward": asked_reward("openrlhf"),
    "judge": asked_judge("pointwise"),
    "pairs": asked_judge("pairwise"),
    "opponent": AskedOpponent,
    "sandbox": AskedSandbox,
    "environment": AskedEnvironment,
}


@contextmanager
def recorded(folder: Path) -> Iterator[Callable[[Heard], None]]:
    """What was heard has to fit into a line of a record."""
    lines = JsonlWriter(folder / "lines.jsonl", buffered_lines=1)
    try:
        yield lambda heard: lines.write([heard])
    finally:
        lines.close()


async def suffered(
    client: Callable[[str], Asker], answers: Mapping[str, Parts], folder: Path, longest: float = SECONDS
) -> dict[str, str]:
    """The answers that did harm, and which: an exception without a name, no end in time, a line that cannot be."""
    harm: dict[str, str] = {}
    current: list[Parts] = [b""]
    with answering(lambda connection: saying(current[0])(connection)) as url, recorded(folder) as record:
        asker = client(url)
        for name, parts in answers.items():
            current[0], began = parts, time.monotonic()
            try:
                record(await asker.ask())
            except BaseException as error:  # noqa: BLE001 - that none gets here is what is tested
                harm[name] = f"{type(error).__name__}: {error}"[:200]
            if (seconds := time.monotonic() - began) > scaled(longest + 1.0):
                harm[name] = f"took {seconds:.1f} s"
        await asker.close()
    return harm


def bodies(right: Any, every: int = 1) -> dict[str, Parts]:
    """Answers that are right but for one thing; of many one in `every`, and never one thing alone."""
    return {name: ok(text, JSON) for name, text in list(spoilt(right).items())[::every]}


@pytest.mark.parametrize("client", CLIENTS)
async def test_no_answer_over_http_ends_a_run(client: str, tmp_path: Path) -> None:
    answers = every_answer()
    assert len(answers) >= 40
    assert await suffered(CLIENTS[client], answers, tmp_path) == {}


@pytest.mark.attack
@pytest.mark.engine
async def test_no_answer_over_http_ends_a_run_with_tools(tmp_path: Path) -> None:
    assert await suffered(AskedTools, every_answer(), tmp_path, 2 * SECONDS) == {}


QUICK = [(client, 7) for client in ("judge", "opponent", "sandbox", "metadata", "schema", *REWARDS)]
WHOLE = [pytest.param(client, 1, marks=pytest.mark.attack) for client, _ in QUICK]


@pytest.mark.parametrize(("client", "every"), QUICK + WHOLE)
async def test_no_answer_that_is_nearly_right_is_taken_for_one(client: str, every: int, tmp_path: Path) -> None:
    """A number is one, a text is one, or the answer has a fault by name. A server's metadata is its schema here too."""
    rights = REWARDS | {"judge": CHAT, "opponent": CHAT, "sandbox": RUN, "metadata": METADATA, "schema": SCHEMA}
    clients = {"metadata": AskedEnvironment, "schema": AskedEnvironment} | {
        name: asked_reward(name) for name in REWARDS
    }
    chosen = clients.get(client) or CLIENTS[client]
    assert await suffered(chosen, bodies(rights[client], every), tmp_path) == {}


@pytest.mark.attack
@pytest.mark.parametrize("client", CLIENTS)
async def test_no_answer_is_waited_for_longer_than_was_said(client: str, tmp_path: Path) -> None:
    """A deadline for each part of an answer is none: these send a part in time, for ever."""
    assert await suffered(CLIENTS[client], SLOW, tmp_path) == {}


@pytest.mark.parametrize("content", [BOMB, BOMBS], ids=["once", "twice"])
async def test_what_is_compressed_does_not_unfold(content: bytes) -> None:
    asking = HttpClient("http://127.0.0.1:1", HttpConfig(**ONCE), timeout_seconds=20)  # type: ignore[arg-type]
    with answering(saying(ok(content, "content-encoding: gzip"))) as url:
        asking.url = url
        tracemalloc.start()
        with pytest.raises(RlhfError, match="compressed"):
            await asking.get("/")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    await asking.close()
    assert peak < 8 * 2**20


async def test_a_recorder_unfolds_nothing_either(tmp_path: Path) -> None:
    recording = tmp_path / "recording.jsonl"
    with answering(saying(ok(BOMBS, "content-encoding: gzip, gzip"))) as url:
        for mode in ("record", "replay"):
            settings = RecordingConfig(path=str(recording), mode=mode)  # type: ignore[arg-type]
            asking = HttpClient(url, HttpConfig(**ONCE), timeout_seconds=5, recording=settings)  # type: ignore[arg-type]
            with pytest.raises(RlhfError, match="protocol: the answer is compressed"):
                await asking.get("/")
            await asking.close()


async def test_an_answer_is_kept_as_far_as_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.http.exchange.ANSWER_BYTES", 2**20)
    asking = HttpClient("http://127.0.0.1:1", HttpConfig(**ONCE), timeout_seconds=20)  # type: ignore[arg-type]
    with answering(saying([b"HTTP/1.1 200 OK\r\n\r\n", *[b" " * 2**19] * 400], 0.0)) as url:
        asking.url = url
        with pytest.raises(RlhfError, match="longer than 1048576 bytes"):
            await asking.get("/")
    await asking.close()


async def test_cookies_are_not_kept_and_not_sent() -> None:
    heads: list[bytes] = []

    def talk(connection: Any) -> None:
        heads.append(connection.recv(65536))
        connection.sendall(ok(b"{}", "set-cookie: a=b; Path=/", "content-length: 2"))

    asking = HttpClient("http://127.0.0.1:1", HttpConfig(**ONCE), timeout_seconds=5)  # type: ignore[arg-type]
    with answering(talk) as url:
        asking.url = url
        for _ in range(3):
            await asking.get("/")
    await asking.close()
    assert not [head for head in heads if b"cookie" in head.lower()]
    assert all(b"accept-encoding: identity" in head.lower() for head in heads)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_token_is_not_carried_elsewhere(code: int) -> None:
    seen: list[bytes] = []

    def elsewhere(connection: Any) -> None:
        seen.append(connection.recv(65536))

    with answering(elsewhere) as other:
        moved = f"HTTP/1.1 {code} X\r\nlocation: {other}/\r\ncontent-length: 0\r\n\r\n".encode()
        with answering(saying(moved)) as url:
            asking = HttpClient(url, HttpConfig(**ONCE), timeout_seconds=5, token="secret")  # type: ignore[arg-type]
            with pytest.raises(RlhfError, match=str(code)):
                await asking.post("/", {})
            await asking.close()
            for client in (AskedEnvironment, AskedSandbox):
                assert "failed" in await client(url).ask()
    assert seen == []


def test_a_judges_blanks_are_read_in_time() -> None:
    from rlhf.reward.verdict import mark_of, parse_choice

    began = time.monotonic()
    for text in ("verdict:" + " " * 2_000_000 + "x", "verdict: \n" * 300_000, "verdict:1" + ".1" * 500_000 + "x"):
        mark_of(text, 0, 10)
        parse_choice(text)
    assert time.monotonic() - began < scaled(5)


def test_the_right_answers_are_taken() -> None:
    """Else all of the above would say nothing."""
    rights = {"judge": CHAT, "opponent": CHAT, "sandbox": RUN, "environment": METADATA}
    patient = CLIENTS | {
        "opponent": partial(AskedOpponent, seconds=20),
        "environment": partial(AskedEnvironment, seconds=20),
    }
    for client, right in rights.items():
        with answering(saying(ok(json.dumps(right).encode(), JSON))) as url:
            heard = asyncio.run(_once(patient[client], url))
        assert "failed" not in heard
        assert "scores" not in heard or heard["scores"] == [0.7, 0.7]
    with answering(saying(ok(json.dumps(REWARDS["openrlhf"]).encode(), JSON))) as url:
        assert asyncio.run(_once(CLIENTS["reward"], url)) == {"scores": [0.5, ["timeout", "late"]]}


async def _once(client: Callable[[str], Asker], url: str) -> Heard:
    asker = client(url)
    try:
        return await asker.ask()
    finally:
        await asker.close()


def test_messages_of_failures_are_short() -> None:
    with answering(saying(ok(b'"' + b"x" * 3_000_000 + b'"', JSON))) as url:
        for client in CLIENTS.values():
            assert len(json.dumps(asyncio.run(_once(client, url)))) < 5000
