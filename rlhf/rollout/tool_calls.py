"""Parse tool calls in a reply's text, by a named format. Pure.

A custom format is `module:function` with the same signature: `(text) -> Spoken`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.config import is_piece, load_piece
from rlhf.errors import ConfigError
from rlhf.types import ToolCall

HERMES_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
PYTHON_TAG = "<|python_tag|>"
DEEPEST = 100
"""Maximum nesting depth of lists and objects: less than what the wire format of environments carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A parsed reply: its tool calls with the text `beside` them, or the `problem` with them. Without either it is
    plain text."""

    calls: tuple[ToolCall, ...] = ()
    beside: str = ""
    problem: str | None = None


ToolFormat = Callable[[str], Spoken]


class Malformed(ValueError):
    """A malformed tool call; the message is for the policy."""


def hermes(text: str) -> Spoken:
    """Parse `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them; the format of Hermes and
    Qwen."""
    calls = [(match[1], match[2]) for match in HERMES_CALL.finditer(text)]
    return _spoken(calls, beside=HERMES_CALL.sub("", text).strip()) if calls else Spoken()


def llama3_json(text: str) -> Spoken:
    """Return a reply that is exactly one JSON object `{"name": …, "parameters": {…}}`; the format of Llama 3.1 and
    later."""
    body = text.strip()
    tagged = body.startswith(PYTHON_TAG)
    body = body.removeprefix(PYTHON_TAG).strip()
    return _spoken([(body, "end")]) if tagged or body.startswith("{") else Spoken()


def plain_text(text: str) -> Spoken:
    """Return no tool calls: replies are never parsed."""
    return Spoken()


FORMATS: Mapping[str, ToolFormat] = {"hermes": hermes, "llama3_json": llama3_json, "none": plain_text}


def tool_format(name: str, setting: str = "environment.tool_format") -> ToolFormat:
    """Return the format with that name, which `setting` gave. Raises `ConfigError` for an unknown one."""
    if is_piece(name):
        own: ToolFormat = load_piece(name, setting)
        return own
    if name not in FORMATS:
        raise ConfigError(f"{setting} is {name!r}; use {', '.join(FORMATS)} or module:function")
    return FORMATS[name]


def json_of(text: str) -> Any:
    """Return the value of JSON text, if it can be serialised again: Python's parser also accepts NaN, numbers beyond
    the range of floats and lone surrogates, which are refused here, as is nesting deeper than `DEEPEST`. Raises
    `ValueError`."""
    try:
        read = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _nested_deeper(read, DEEPEST):
        raise ValueError("it is nested too deeply")
    json.dumps(read, allow_nan=False, ensure_ascii=False).encode()
    return read


def _nested_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_nested_deeper(one, levels - 1) for one in inside)


def _spoken(written: list[tuple[str, str]], beside: str = "") -> Spoken:
    """Return the calls of a reply, each given by its body and what ends it; one malformed call invalidates all of
    them."""
    try:
        calls = tuple(_call(body, end, number) for number, (body, end) in enumerate(written))
        return Spoken(calls=calls, beside=beside)
    except Malformed as problem:
        return Spoken(problem=f"malformed tool call: {problem}")


def _call(body: str, end: str, number: int) -> ToolCall:
    if not end:
        raise Malformed("</tool_call> is missing")
    try:
        call = json_of(body)
    except ValueError as error:
        raise Malformed(f"it is not JSON ({error})") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise Malformed('it needs a "name" that is text')
    return ToolCall(id=f"call_{number}", name=call["name"], arguments=_arguments(call))


def _arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments object, under either key; some models write it as text."""
    given = call.get("arguments", call.get("parameters", {}))
    if isinstance(given, str):
        try:
            given = json_of(given)
        except ValueError:
            raise Malformed('its "arguments" are text that is not JSON') from None
    if not isinstance(given, dict):
        raise Malformed('its "arguments" must be a JSON object')
    return given
