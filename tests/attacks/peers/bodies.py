"""Answers that are JSON and of the right shape but for one thing, by client."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

WRONG: dict[str, Any] = {
    "null": None, "true": True, "text": "1.0", "a word": "no", "a list": [], "lists": [["a"]], "an object": {},
    "a number": 0.5, "negative": -1, "ten to the 400th": 10**400, "deep": [[[[[[[[1]]]]]]]], "many": list(range(5000)),
    "half": "\ud800", "commands": "\x1b[2J\u202e\x9b", "long": "x" * 300_000, "keys": {"\x1b": {"\udfff": None}},
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
        for name in ("NaN", "Infinity", "1e999"):
            marked = json.dumps(with_at(right, path, "@@"))
            texts[f"{where} is {name}"] = marked.replace('"@@"', name).encode()
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
