"""Any answer of an environment's server over its WebSocket gives an observation, or a failure with a name."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf.env.answers import Undecodable
from rlhf.env.client.dialect import Dialect, InvalidAction, Ours, Stock, dialect_of
from rlhf.env.client.remote import Address, AtCapacity, Broken, Patience, RemoteEnvironment
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import EnvironmentFailed
from rlhf.runs.records import _said
from rlhf.types import EnvironmentSpec, Message, Observation, Task, ToolCall
from tests.attacks.peers.answers import ERROR, OBSERVATION, SCHEMA, STOCK, TEXTS, every_answer, spoilt
from tests.attacks.peers.server import Parts, answering, frame, harm_of, ok, read_frame, saying, shake_hands
from tests.pace import scaled

SECONDS = 0.5
SPEC = EnvironmentSpec(name="e", description="d")
OURS, STOCKS = Ours(spec=SPEC, resumes=False), Stock(spec=SPEC)
PATIENCE = Patience(
    deadlines=Deadlines(open_seconds=SECONDS, reset_seconds=SECONDS, step_seconds=SECONDS), tries=1, pause_seconds=0.0
)
TASK = Task(id="0", messages=(Message(role="user", content="q"),))
STATE = frame(json.dumps({"type": "state", "data": {"step_count": 0}}).encode())
ACTION = Message(
    role="assistant", content="\ud800\x1b", tool_calls=(ToolCall(id="c", name="\udfff", arguments={"a": "\ud800"}),)
)


def talking(answer: Parts) -> Callable[[socket.socket], None]:
    """A server that opens a session as it should, and then answers with given bytes."""

    def talk(connection: socket.socket) -> None:
        shake_hands(connection)
        read_frame(connection)
        connection.sendall(STATE)
        read_frame(connection)
        for part in [answer] if isinstance(answer, bytes) else answer:
            connection.sendall(part)
        read_frame(connection)  # until the client goes

    return talk


def sound(heard: Observation) -> dict[str, Any]:
    """What was heard as a record has it; nothing in it is of another kind than it says."""
    assert all(type(one.content) is str and type(one.role) is str for one in heard.messages)
    assert heard.reward is None or (type(heard.reward) is float and math.isfinite(heard.reward))
    assert type(heard.terminated) is bool
    assert type(heard.truncated) is bool
    assert type(heard.role) is str
    "".join(one.content for one in heard.messages).encode()
    return {"said": [_said(one) for one in heard.messages], "role": heard.role, "info": dict(heard.info)}


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


async def harm(
    answers: Mapping[str, Parts], folder: Path, dialect: Dialect = OURS, method: str = "reset"
) -> dict[str, str]:
    return await harm_of(lambda url: heard_of(url, dialect, method), talking, answers, folder, scaled(2 * SECONDS + 1))


def frames(texts: Mapping[str, bytes], every: int = 1) -> dict[str, Parts]:
    return {name: frame(text) for name, text in list(texts.items())[::every]}


def endless(part: bytes, count: int = 3000) -> Iterable[bytes]:
    return [part] * count


RIGHT = json.dumps(OBSERVATION).encode()
WIRE: dict[str, Parts] = {
    "nothing": b"",
    "garbage": b"\xff" * 300,
    "half a frame": frame(RIGHT)[:100],
    "a length beyond all memory": b"\x81\x7f" + struct.pack("!Q", 2**63 - 1),
    "bytes": frame(RIGHT, 2),
    "text that is none": frame(b'{"type": "\xff"}'),
    "a message that never ends": [frame(b"{", first=0x01), *endless(frame(b" " * 1000, first=0x00), 300)],
    "pings for ever": endless(frame(b"x", 9)),
    "closed with commands": frame(struct.pack("!H", 4000) + b"\x1b[2J\xc2\x9b", 8),
    "two answers": frame(RIGHT) * 2,
}
"""Below JSON."""
JSONS: dict[str, Any] = {
    "no type": {"data": {}},
    "data is a list": {"type": "observation", "data": []},
    "an error of no code": {"type": "error", "data": {}},
    "a code that is an object": {"type": "error", "data": {"code": {"a": 1}, "message": []}},
    "a kind that is none": {"type": "error", "data": {"kind": "\x1b[2J", "code": "SESSION_ERROR"}},
    "full": {"type": "error", "data": {"code": "CAPACITY_REACHED"}},
    "an error of a megabyte": {"type": "error", "data": {"code": "X", "message": "x" * 10**6}},
}


def said(**changes: Any) -> bytes:
    """The right observation with other messages or another end."""
    message = {"role": "user", "content": "c"} | changes
    whole = json.loads(RIGHT)
    whole["data"]["observation"]["messages"] = [message]
    return json.dumps(whole).encode()


async def test_no_frame_ends_a_run(tmp_path: Path) -> None:
    assert await harm(WIRE, tmp_path) == {}
    texts = TEXTS | {name: json.dumps(one).encode() for name, one in JSONS.items()}
    assert await harm(frames(texts), tmp_path) == {}
    assert await harm(frames(texts), tmp_path, STOCKS, "step") == {}


@pytest.mark.parametrize("right", ["ours", "stock", "error"])
async def test_no_observation_that_is_nearly_right_is_taken_for_one(right: str, tmp_path: Path) -> None:
    chosen = {"ours": OBSERVATION, "stock": STOCK, "error": ERROR}[right]
    for method in ("reset", "step"):
        answers = frames(spoilt(chosen), 5)
        assert await harm(answers, tmp_path, STOCKS if right == "stock" else OURS, method) == {}


async def test_no_role_is_injected_in_the_middle_of_an_episode() -> None:
    for role in ("system", "assistant", "", "user\n", "\x1b[2J", "tool_"):
        with answering(talking(frame(said(role=role)))) as url:
            assert "has a message of role" in str((await heard_of(url, OURS, "step"))["failed"])
    with answering(talking(frame(said(role="system")))) as url:
        assert (await heard_of(url, OURS, "reset"))["said"] == [{"role": "system", "content": "c"}], "it may begin so"


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        *(("terminated", "false", wrong) for wrong in ('"no"', "1", "null")),
        *(("reward", "0.5", wrong) for wrong in ("NaN", "1e999", '"0.5"', "true", "[0.5]", "9" * 400)),
    ],
)
async def test_an_end_is_true_or_false_and_a_reward_a_finite_number(key: str, right: str, wrong: str) -> None:
    text = RIGHT.replace(f'"{key}": {right}'.encode(), f'"{key}": {wrong}'.encode())
    with answering(talking(frame(text))) as url:
        assert "failed" in await heard_of(url, OURS, "step")


async def test_a_policys_halves_of_characters_reach_the_server_whole() -> None:
    asked: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        shake_hands(connection)
        read_frame(connection)
        connection.sendall(STATE)
        asked.append(read_frame(connection))
        connection.sendall(frame(RIGHT))

    with answering(talk) as url:
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


SCHEMAS: dict[str, Any] = {
    "itself": {"$ref": "#", "required": ["a", "b"]},
    "required are lists": {"required": [["a"]]},
    "properties are a list": {"properties": ["a"], "required": ["a"]},
    "a property is text": {"properties": {"a": "string"}, "required": ["a"]},
    "a type that is a list": {"properties": {"a": {"type": ["string"]}}, "required": ["a"]},
    "a list": ["a"],
    "true": True,
    "ten thousand properties": {"properties": {f"p{n}": {"type": "string"} for n in range(10_000)}},
}
WRITTEN = ["{}", "[1]", "NaN", '{"a": 1e999}', "[" * 100_000, '{"a": "\\ud800"}', '{"a": ' + "9" * 5000 + "}", "", "go"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_schema_of_a_server_takes_more_than_a_moment(name: str) -> None:
    """The schema is refused, or used as far as it is understood."""
    began = time.process_time()
    with contextlib.suppress(Undecodable):
        dialect = dialect_of({"name": "e"}, {"action": SCHEMAS[name]})
        for written in WRITTEN:
            with contextlib.suppress(InvalidAction):
                assert isinstance(dialect.action(Message(role="assistant", content=written), "r"), dict)
    assert time.process_time() - began < scaled(2.0)


async def test_an_action_that_a_stock_server_refuses_is_explained_to_the_policy() -> None:
    refusal = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "move: not an integer"}}
    with answering(talking(frame(json.dumps(refusal).encode()))) as url:
        observation = await heard_of(url, Stock(spec=SPEC, action_schema=SCHEMA), "step")
    with answering(talking(frame(json.dumps(refusal).encode()))) as url:
        failed = await heard_of(url, OURS, "step")
    assert observation["said"][0]["content"].startswith("Not an action: move: not an integer. Reply with one JSON")
    assert "protocol" in failed["failed"]


async def test_the_right_observation_is_taken() -> None:
    """Else all of the above would say nothing."""
    for right, dialect, text in ((OBSERVATION, OURS, "5"), (STOCK, STOCKS, "hi")):
        with answering(talking(frame(json.dumps(right).encode()))) as url:
            heard = await heard_of(url, dialect, "step")
        assert heard["said"][0]["content"] == text
    with answering(saying(ok(b"{}"))) as url:
        assert "has no WebSocket" in str((await heard_of(url, OURS, "reset"))["failed"])
