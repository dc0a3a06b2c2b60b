"""Parse the JSON of tool calls; only JSON that can be serialised again is accepted. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlhf.types import ToolCall

DEEPEST = 100
"""Maximum nesting depth of lists and objects: less than what the wire format of environments carries."""
LENIENT = json.JSONDecoder(strict=False)
"""Accepts line breaks in strings: models write programs with them."""


class Malformed(ValueError):
    """A malformed tool call; the message is for the policy."""


def decoded(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at position `at`, and where it ends. Raises `Malformed`."""
    while text[at : at + 1].isspace():
        at += 1
    try:
        value, end = LENIENT.raw_decode(text, at)
        return serialisable(value), end
    except RecursionError:
        raise Malformed("invalid JSON (nested too deeply)") from None
    except ValueError as error:
        raise Malformed(f"invalid JSON ({error})") from None


def json_of(text: str) -> Any:
    """Return the value of JSON text, if it can be serialised again. Raises `ValueError`."""
    try:
        return serialisable(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def serialisable(value: Any) -> Any:
    """Return a parsed value if it can be serialised again. Python's parser accepts NaN, numbers beyond the range of
    floats and lone surrogates; this refuses them, and nesting deeper than `DEEPEST`. Raises `ValueError`."""
    if _nested_deeper(value, DEEPEST):
        raise ValueError("nested too deeply")
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


def call_of(value: Any) -> ToolCall:
    """Return the call that an object describes; a missing id is empty. Raises `Malformed`."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name.strip():
        raise Malformed('"name" must be a string')
    given = value.get("id")
    return ToolCall(id=given if isinstance(given, str) else "", name=name, arguments=_arguments(value))


def _arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments object, under either key; some models write it as text."""
    given = call.get("arguments", call.get("parameters", {}))
    if isinstance(given, str):
        try:
            given = json_of(given) if given.strip() else {}
        except ValueError:
            raise Malformed('"arguments" is a string that is not JSON') from None
    if not isinstance(given, dict):
        raise Malformed('"arguments" must be a JSON object')
    return given


def _nested_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_nested_deeper(one, levels - 1) for one in inside)
