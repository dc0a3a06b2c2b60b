"""Whatever is sent to a server, it refuses it in a line and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator

import pytest

from tests.attacks.servers.at_once import QUICK, SERVERS
from tests.attacks.servers.corpus import HONEST, HOST, WEBSOCKET, by_hand, posted
from tests.attacks.servers.fuzz import spoilt
from tests.attacks.servers.raw import (
    ANSWER_SECONDS,
    SILENCE,
    Attacked,
    answer_to,
    answers_to,
    attacked,
    frame,
    status_of,
)
from tests.pace import scaled

pytestmark = pytest.mark.waits
FUZZED, FUZZED_LONG = 100, 1500


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(tmp_path_factory.mktemp("attacked"), list(SERVERS), limits=QUICK) as servers:
        yield servers


async def is_well(servers: Attacked, name: str) -> None:
    """The server answers every honest request, and its log holds no traceback."""
    for path, body in HONEST[name]:
        told = await answer_to(servers.ports[name], posted(path, json.dumps(body).encode()))
        assert status_of(told) == 200 or b"send a reset" in told, told
    assert "Traceback" not in servers.log, servers.log[-5000:]


def refuses(told: bytes) -> bool:
    """Whether an answer is a 4xx, none at all, or an error of JSON-RPC."""
    status = status_of(told)
    return status is None or 400 <= status < 500 or (status == 200 and b'"error":{' in told)


@pytest.mark.parametrize("name", SERVERS)
async def test_a_request_that_makes_no_sense_is_refused(servers: Attacked, name: str) -> None:
    cases = by_hand(name)
    assert len(cases) >= 60
    told = await answers_to(servers.ports[name], [sent for _, sent in cases])
    taken = [(what, one[:200]) for (what, _), one in zip(cases, told, strict=True) if not refuses(one)]
    assert taken == []
    await is_well(servers, name)


async def fuzz(servers: Attacked, name: str, count: int, seed: int) -> None:
    dice = random.Random(f"{name} {seed}")
    requests = [spoilt(name, dice) for _ in range(count)]
    told = await answers_to(servers.ports[name], requests)
    assert [sent for sent, one in zip(requests, told, strict=True) if one == SILENCE] == []
    pairs = [(sent, one) for sent, one in zip(requests, told, strict=True) if (status_of(one) or 0) >= 500]
    assert [(sent[:1000], one[:300]) for sent, one in pairs if b'"kind":"raised"' not in one] == []
    await is_well(servers, name)


@pytest.mark.parametrize("name", SERVERS)
async def test_a_request_that_was_spoilt_by_chance_is_no_fault_of_the_server(servers: Attacked, name: str) -> None:
    await fuzz(servers, name, FUZZED, seed=0)


@pytest.mark.attack
@pytest.mark.parametrize("name", SERVERS)
async def test_thousands_that_were_spoilt_by_chance_are_none_either(servers: Attacked, name: str) -> None:
    await fuzz(servers, name, FUZZED_LONG, seed=1)


OPENED = b"GET /ws HTTP/1.1\r\n" + HOST + WEBSOCKET + b"\r\n"
DEEP_CALL = b'{"type":"call_tool","tool_name":"add","arguments":"' + b"[" * 9000 + b'"}'
FRAMES = {
    "no JSON": frame(b"{"), "bytes": frame(b"\xff\xfe"), "binary": frame(b"\xff\xfe", opcode=2), "a list": frame(b"[]"),
    "a kind that is a list": frame(b'{"type": []}'), "a kind that is none": frame(b'{"type": "jump"}'),
    "an integer of 5,000 digits": frame(b'{"type": "reset", "data": {"seed": ' + b"1" * 5000 + b"}}"),
    "deep": frame(b"[" * 50_000), "half of a character": frame(b'{"type": "step", "data": {"text": "\\ud800"}}'),
    "a surrogate as a tool": frame(b'{"type":"step","data":{"type":"call_tool","tool_name":"\\ud800"}}'),
    "deep arguments": frame(b'{"type":"step","data":' + DEEP_CALL + b"}"),
    "no MCP": frame(b'{"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/call", "params": []}}'),
    "a step before a reset": frame(b'{"type": "step", "data": {"text": "5"}}'),
    "an opcode that is none": frame(b"", opcode=5), "a long ping": frame(b"a" * 200, opcode=9),
    "a ping in pieces": frame(b"a", opcode=9, fin=False), "going on with nothing": frame(b"a", opcode=0),
    "a close of one byte": frame(b"a", opcode=8), "a close of no code": frame(b"\0\1", opcode=8),
    "no mask": bytes([0x81, 2]) + b"{}", "reserved bits": bytes([0xF1, 0x82, 0, 0, 0, 0]) + b"{}",
    "too long": bytes([0x81, 0xFF]) + (2**40).to_bytes(8) + bytes(4),
    "a length below zero": bytes([0x81, 0xFF]) + b"\xff" * 8 + bytes(4), "half a frame": frame(b"{}")[:-1],
    "a message that does not end": frame(b"{", fin=False), 
    "pieces of nothing": frame(b"{", fin=False) + frame(b"", opcode=0, fin=False) * 5000,
    "a thousand at once": frame(b'{"type": "state"}') * 1000, "noise": bytes(range(256)),
}  # fmt: skip


async def heard_after(port: int, sent: bytes) -> bytes:
    """What a WebSocket hears after its handshake until it is closed, or until an error is told."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(scaled(ANSWER_SECONDS)):
            writer.write(OPENED)
            heard = await reader.readuntil(b"\r\n\r\n")
            assert heard.startswith(b"HTTP/1.1 101"), heard
            heard = b""
            with contextlib.suppress(ConnectionError):
                writer.write(sent)
                while b'"error"' not in heard and (more := await reader.read(65536)):
                    heard += more
        return heard
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("what", FRAMES)
async def test_a_frame_that_makes_no_sense_is_answered_or_ends_its_socket(servers: Attacked, what: str) -> None:
    heard = await heard_after(servers.ports["environment"], FRAMES[what])
    assert b'"error"' in heard or b'"observation"' not in heard


async def test_a_server_is_well_after_all_frames(servers: Attacked) -> None:
    await is_well(servers, "environment")
