"""Any answer of an environment's server over its WebSocket gives an observation, or a failure with a name."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from rlhf.env.client.dialect import Dialect, Ours, Stock
from rlhf.env.client.remote import Address, AtCapacity, Broken, Patience, RemoteEnvironment
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import EnvironmentFailed
from rlhf.runs.episode_records import _message
from rlhf.types import EnvironmentSpec, Message, Observation, Task, ToolCall
from tests.attacks.peers.answers import ERROR, OBSERVATION, SCHEMA, STOCK, TEXTS, every_answer, spoilt
from tests.attacks.peers.server import Parts, answering, ok, saying
from tests.pace import scaled

SECONDS = 0.5
SPEC = EnvironmentSpec(name="e", description="d")
OURS, STOCKS = Ours(spec=SPEC, resumes=False), Stock(spec=SPEC)
PATIENCE = Patience(
    deadlines=Deadlines(open_seconds=SECONDS, reset_seconds=SECONDS, step_seconds=SECONDS), tries=1, pause_seconds=0.0
)
TASK = Task(id="0", messages=(Message(role="user", content="q"),))
STATE = json.dumps({"type": "state", "data": {"step_count": 0}})
Answer = str | bytes | list[str]
"""A message; a list is one in pieces."""
ACTION = Message(
    role="assistant", content="\ud800\x1b", tool_calls=(ToolCall(id="c", name="\udfff", arguments={"a": "\ud800"}),)
)


@contextlib.asynccontextmanager
async def playing(answers: list[Answer], heard: list[str | bytes] | None = None) -> AsyncIterator[str]:
    """A server that opens a session as it should, and then answers with the given messages; gives its URL."""

    async def talk(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.recv()
            await connection.send(STATE)
            asked = await connection.recv()
            if heard is not None:
                heard.append(asked)
            for answer in answers:
                await connection.send(answer)
            await connection.wait_closed()

    async with serve(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def sound(heard: Observation) -> dict[str, Any]:
    """What was heard as a record has it; nothing in it is of another kind than it says."""
    assert all(type(one.content) is str and type(one.role) is str for one in heard.messages)
    assert heard.reward is None or (type(heard.reward) is float and math.isfinite(heard.reward))
    assert type(heard.terminated) is bool
    assert type(heard.truncated) is bool
    assert type(heard.role) is str
    "".join(one.content for one in heard.messages).encode()
    return {"said": [_message(one) for one in heard.messages], "role": heard.role, "info": dict(heard.info)}


async def heard_of(url: str, dialect: Dialect, method: str) -> dict[str, Any]:
    environment = RemoteEnvironment(Address(url=url, token="secret"), dialect, PATIENCE)
    try:
        await environment.open()
        asked = environment.reset(TASK, seed=1) if method == "reset" else environment.step(ACTION)
        return sound(await asked)
    except (EnvironmentFailed, Broken, AtCapacity) as failed:
        return {"failed": str(failed)}
    finally:
        await environment.close()


async def harm(answers: Mapping[str, Answer], dialect: Dialect = OURS, method: str = "reset") -> dict[str, str]:
    """The answers that did harm, and which: an exception without a name, or a wait that is too long."""
    found: dict[str, str] = {}
    current: list[Answer] = [""]
    async with playing(current) as url:
        for name, answer in answers.items():
            current[0], began = answer, time.monotonic()
            try:
                json.dumps(await heard_of(url, dialect, method)).encode()
            except BaseException as error:  # noqa: BLE001 - that none gets here is tested
                found[name] = f"{type(error).__name__}: {error}"[:200]
            if (seconds := time.monotonic() - began) > scaled(2 * SECONDS + 1):
                found[name] = f"took {seconds:.1f} s"
    return found


RIGHT = json.dumps(OBSERVATION)
MESSAGES: dict[str, Answer] = {
    "nothing": b"",
    "bytes": RIGHT.encode(),
    "bytes that are no text": b"\xff\xfe\x00",
    "a message that never ends": ["{", *[" " * 100_000] * 300],
}
JSONS: dict[str, Any] = {
    "no type": {"data": {}},
    "data is a list": {"type": "observation", "data": []},
    "an error of no code": {"type": "error", "data": {}},
    "a code that is an object": {"type": "error", "data": {"code": {"a": 1}, "message": []}},
    "a kind that is none": {"type": "error", "data": {"kind": "\x1b[2J", "code": "SESSION_ERROR"}},
    "a type that is a list": {"type": ["error"], "data": {}},
    "full": {"type": "error", "data": {"code": "CAPACITY_REACHED"}},
    "an error of a megabyte": {"type": "error", "data": {"code": "X", "message": "x" * 10**6}},
}


def said(**changes: Any) -> str:
    """The right observation with other messages or another end."""
    message = {"role": "user", "content": "c"} | changes
    whole = json.loads(RIGHT)
    whole["data"]["observation"]["messages"] = [message]
    return json.dumps(whole)


async def test_no_message_ends_a_run() -> None:
    assert await harm(MESSAGES) == {}
    texts = {name: text.decode("utf-8", "replace") for name, text in TEXTS.items()}
    texts |= {name: json.dumps(one) for name, one in JSONS.items()}
    assert await harm(texts) == {}
    assert await harm(texts, STOCKS, "step") == {}


async def test_a_server_that_says_nothing_is_left_in_time() -> None:
    async with playing([]) as url:
        assert "timeout: no answer to reset within 0.5 s" in (await heard_of(url, OURS, "reset"))["failed"]


@pytest.mark.parametrize("right", ["ours", "stock", "error"])
async def test_no_observation_that_is_nearly_right_is_taken_for_one(right: str) -> None:
    chosen = {"ours": OBSERVATION, "stock": STOCK, "error": ERROR}[right]
    answers = {name: text.decode() for name, text in list(spoilt(chosen).items())[::3]}
    assert await harm(answers, STOCKS if right == "stock" else OURS, "step") == {}


async def test_no_role_is_injected_in_the_middle_of_an_episode() -> None:
    for role in ("system", "assistant", "", "user\n", "\x1b[2J", "tool_"):
        async with playing([said(role=role)]) as url:
            assert "has a message of role" in str((await heard_of(url, OURS, "step"))["failed"])
    async with playing([said(role="system")]) as url:
        assert (await heard_of(url, OURS, "reset"))["said"] == [{"role": "system", "content": "c"}], "it may begin so"


async def test_a_policys_halves_of_characters_reach_the_server_whole() -> None:
    asked: list[str | bytes] = []
    async with playing([RIGHT], asked) as url:
        assert "failed" not in await heard_of(url, OURS, "step")
    assert json.loads(asked[0])["data"]["tool_calls"][0]["arguments"] == {"a": "\ufffd"}


async def test_no_answer_to_the_handshake_ends_a_run() -> None:
    current: list[Parts] = [b""]
    with answering(lambda connection: saying(current[0])(connection)) as url:
        for name, parts in every_answer().items():
            current[0] = parts
            assert "failed" in await heard_of(url, OURS, "reset"), name


async def test_a_token_is_not_carried_to_another_server() -> None:
    seen: list[bytes] = []
    with answering(lambda connection: seen.append(connection.recv(65536))) as other:
        moved = f"HTTP/1.1 307 X\r\nlocation: ws{other[4:]}/ws\r\ncontent-length: 0\r\n\r\n".encode()
        with answering(saying(moved)) as url:
            assert "HTTP status 307" in str((await heard_of(url, OURS, "reset"))["failed"])
    assert seen == []


async def test_an_action_that_a_stock_server_refuses_is_explained_to_the_policy() -> None:
    refusal = json.dumps({"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "move: not an integer"}})
    async with playing([refusal]) as url:
        observation = await heard_of(url, Stock(spec=SPEC, action_schema=SCHEMA), "step")
        failed = await heard_of(url, OURS, "step")
    assert observation["said"][0]["content"].startswith("Invalid action: move: not an integer. Reply with one JSON")
    assert "protocol" in failed["failed"]


async def test_the_right_observation_is_taken() -> None:
    """Otherwise the tests above would say nothing."""
    for right, dialect, text in ((OBSERVATION, OURS, "5"), (STOCK, STOCKS, "hi")):
        async with playing([json.dumps(right)]) as url:
            assert (await heard_of(url, dialect, "step"))["said"][0]["content"] == text
    with answering(saying(ok(b"{}"))) as url:
        assert "has no WebSocket" in str((await heard_of(url, OURS, "reset"))["failed"])
