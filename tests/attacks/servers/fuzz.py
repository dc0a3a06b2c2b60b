"""Honest requests, spoilt by chance: a seed decides how."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.attacks.servers.corpus import GO, HONEST, SURROGATE, posted

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -0.0, 1e308, 5e-324,
    "", " ", "\0", SURROGATE, "é\u202e\u200b\x1b[2J", "a" * 70_000, "../../etc/passwd", "{{7*7}}{% for x in y %}",
    "nan", "Infinity", "9" * 5000, [], {}, [None], [[]], [{}], {"": None}, {"a": {"b": {"c": []}}}, [GO] * 3,
    {"__class__": "x"}, {"type": "list_tools"}, {"type": "call_tool", "tool_name": ""}, ["a"] * 300,
)  # fmt: skip
LITERALS = {b'"LITERAL-0"': b"1" * 5000, b'"LITERAL-1"': b"NaN", b'"LITERAL-2"': b"1e999", b'"LITERAL-3"': b"[" * 300}
"""What no writer of JSON writes."""


def spoilt(server: str, dice: random.Random, token: str | None = None) -> bytes:
    """One request, as bytes."""
    path, body = dice.choice(HONEST[server])
    if dice.random() < 0.7:
        text = json.dumps(with_hostile_value(body, dice)).encode()
        for name, literal in LITERALS.items():
            text = text.replace(name, literal)
        return posted(path, text, token=token)
    return with_wrong_bytes(posted(path, json.dumps(body).encode(), token=token), dice)


def with_hostile_value(body: Any, dice: random.Random) -> Any:
    """A copy in which one value, anywhere, is another one, or one key is."""
    if not isinstance(body, dict | list) or not body or dice.random() < 0.25:
        return dice.choice((*HOSTILE, *(name.decode().strip('"') for name in LITERALS)))
    if isinstance(body, list):
        place = dice.randrange(len(body))
        return [with_hostile_value(one, dice) if index == place else one for index, one in enumerate(body)]
    key = dice.choice(sorted(body))
    if dice.random() < 0.15:
        return body | {dice.choice(["", SURROGATE, "type", "metadata", "session_id", "k" * 5000]): body[key]}
    return body | {key: with_hostile_value(body[key], dice)}


def with_wrong_bytes(request: bytes, dice: random.Random) -> bytes:
    """A copy with a few bytes changed, taken out, put in, doubled or cut off."""
    spoilt = bytearray(request)
    for _ in range(dice.randint(1, 4)):
        at, length = dice.randrange(len(spoilt)), dice.randint(1, 12)
        match dice.randrange(6):
            case 0:
                spoilt[at] = dice.randrange(256)
            case 1:
                spoilt[at] ^= 1 << dice.randrange(8)
            case 2:
                del spoilt[at : at + length]
            case 3:
                spoilt[at:at] = dice.randbytes(length)
            case 4:
                spoilt[at:at] = spoilt[at : at + 40] * length
            case _:
                spoilt[at:at] = dice.choice([b"\r\n", b"\n", b"\r\n\r\n", b"\0", b":", b" ", b"%00", b"\t"])
        if not spoilt:
            return b"\r\n"
    return bytes(spoilt[: dice.randrange(1, len(spoilt))] if dice.random() < 0.2 else spoilt)
