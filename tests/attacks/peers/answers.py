"""Answers of servers that lie: broken HTTP, broken JSON, and right answers with one thing wrong."""

from __future__ import annotations

import copy
import gzip
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.attacks.peers.server import Parts, ok

BOMB = gzip.compress(b"0" * (64 * 2**20))
"""64 MiB in 64 KiB."""
BOMBS = gzip.compress(BOMB)
JSON = "content-type: application/json"
DEEP = 100_000


def status(code: object, body: bytes = b"", *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code}", "connection: close", *headers, "", ""]).encode() + body


def chunked(*chunks: bytes) -> bytes:
    return ok(b"".join(chunks), "transfer-encoding: chunked", JSON)


HTTP: dict[str, Parts] = {
    "nothing": b"",
    "garbage": b"\x00\xff\x16\x03\x01" * 200,
    "a reason of controls": b"HTTP/1.1 200 \x1b[2J\x9b31m\r\n\r\n{}",
    "a header of 300 kB": ok(b"{}", "a: " + "b" * 300_000),
    "cookies": ok(b"{}", *[f"set-cookie: c{n}={'v' * 100}; Path=/" for n in range(500)]),
    "less than its length": ok(b"{}", "content-length: 200"),
    "chunks without an end": chunked(b"2\r\n{}\r\n"),
    "gzip": ok(gzip.compress(b"{}"), "content-encoding: gzip", JSON),
    "a bomb": ok(BOMB, "content-encoding: gzip", JSON),
    "a bomb as an error": status("500 X", BOMBS, "content-encoding: gzip, gzip"),
    "elsewhere": status("302 Found", b"", "location: http://192.0.2.1:9/"),
    "to itself": status("302 X", b"", "location: /"),
    "no content": status("204 X"),
    "busy for ever": status("503 X", b"", "retry-after: " + "9" * 400),
    "an error with commands": status("500 X", b"\x1b[2J\x1b]0;owned\x07\x9b31m\xff\xfe\r\nline"),
    "an error of 10 MB": status("500 X", b"x" * 10_000_000),
    "utf-16": ok('{"a": 1}'.encode("utf-16"), JSON),
    "bytes that are no text": ok(b'{"a": "\xff\xfe\xed\xa0\x80"}', JSON),
    "two answers": ok(b"{}", "content-length: 2") + ok(b'{"rewards": [9]}'),
}
"""Below JSON."""

TEXTS: dict[str, bytes] = {
    "an empty body": b"",
    "a page": b"<html>\x1b[2J</html>",
    "nan": b"NaN",
    "five thousand digits": b"9" * 5000,
    "deep arrays": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a million empty arrays": b"[" + b"[]," * 1_000_000 + b"1]",
    "one key twice": b'{"rewards": [1], "rewards": "x"}',
    "half a character": b'"\\ud800"',
    "controls in a text": b'"\x1b"',
}
"""Bodies of successes."""


def every_answer() -> dict[str, Parts]:
    return HTTP | {f"json: {name}": ok(text, JSON) for name, text in TEXTS.items()}


WRONG: dict[str, Any] = {
    "null": None, "true": True, "text": "1.0", "lists": [["a"]], "an object": {}, "negative": -1,
    "ten to the 400th": 10**400, "many": list(range(5000)), "half": "\ud800", "commands": "\x1b[2J\u202e\x9b",
    "long": "x" * 300_000, "keys": {"\x1b": {"\udfff": None}},
}  # fmt: skip
"""What stands where something else should."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in plain data, the whole included."""
    yield path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def with_at(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """A copy with `wrong` at a place."""
    if not path:
        return wrong
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    return changed


def without(value: Any, path: tuple[Any, ...]) -> Any:
    """A copy in which a place is missing."""
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def spoilt(right: Any) -> dict[str, bytes]:
    """The right answer with each place missing, and with everything wrong at each place."""
    texts: dict[str, bytes] = {}
    for path in places(right):
        where = ".".join(map(str, path)) or "all"
        if path:
            texts[f"{where} is missing"] = json.dumps(without(right, path)).encode()
        for name, wrong in WRONG.items():
            texts[f"{where} is {name}"] = json.dumps(with_at(right, path, wrong)).encode()
        texts[f"{where} is NaN"] = json.dumps(with_at(right, path, math.nan)).encode()
    return texts


OBSERVATION: dict[str, Any] = {
    "type": "observation",
    "data": {
        "observation": {
            "messages": [
                {"role": "tool", "content": "5", "tool_calls": [{"id": "c", "name": "add", "arguments": {"a": 1}}]},
                {"role": "user", "content": "more"},
            ],
            "text": "5",
            "role": "agent",
        },
        "reward": 0.5,
        "done": False,
        "metadata": {"terminated": False, "truncated": False, "role": "agent", "info": {"left": 2}},
    },
}
STOCK: dict[str, Any] = {
    "type": "observation",
    "data": {"observation": {"echoed": "hi"}, "reward": 0.5, "done": True, "metadata": {"truncated": True}},
}
ERROR: dict[str, Any] = {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "broken", "kind": "raised"}}
METADATA: dict[str, Any] = {
    "name": "e",
    "description": "d",
    "extras": {
        "version": 1,
        "spec": {
            "name": "e",
            "description": "d",
            "tools": [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}],
            "roles": ["x", "o"],
        },
    },
}
SCHEMA: dict[str, Any] = {
    "action": {
        "type": "object",
        "properties": {"move": {"type": "integer", "minimum": 0}, "by": {"anyOf": [{"type": "string"}]}},
        "required": ["move", "by"],
        "$defs": {"A": {"type": "string"}},
    }
}
REWARDS: dict[str, Any] = {
    "openrlhf": {
        "rewards": [0.5, None], "scores": [0.5, None],
        "unscored": [{"index": 1, "kind": "timeout", "detail": "late"}],
    },
    "slime": 0.5,
    "vllm_classify": {"data": [{"index": 0, "probs": [0.5]}, {"index": 1, "probs": [0.5]}]},
    "vllm_pooling": {"data": [{"index": 0, "data": [0.5]}, {"index": 1, "data": [0.5]}]},
    "vllm_score": {"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.5}]},
}  # fmt: skip
CHAT: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": "Verdict: 7"}}]}
RUN: dict[str, Any] = {
    "status": "Success",
    "message": "",
    "run_result": {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stdout": "42\n", "stderr": ""},
    "files": {"a": "YQ=="},
}
