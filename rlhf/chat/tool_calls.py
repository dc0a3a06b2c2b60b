"""Parse tool calls in a reply's text, by a named format, or the user's `module:function` `(text) -> ParsedReply`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf.chat.call_json import Malformed, call_of, decoded
from rlhf.chat.thinking import NO_MARKS, CallMarks, thought_and_said
from rlhf.chat.tool_format_names import SHOWN, VLLM_FORMATS
from rlhf.config import is_piece, load_piece
from rlhf.errors import ConfigError
from rlhf.types import Message, Tool, ToolCall

PYTHON_TAG = "<|python_tag|>"
LLAMA_ENDS = re.compile(r"(?:<\|eom_id\|>|<\|eot_id\|>|\s)+\Z")
LLAMA_BEGINS = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"]*)"\s*(?:,\s*(?:"(?:parameters|arguments)|\Z)|\Z)'
)
"""The beginning of an incomplete call."""
GLM4_CALL = re.compile(r"\s*(?P<name>[^\s{]+)[ \t]*\n\s*(?=\{)")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT = re.compile(r"\bto=(?:functions\.)?(\S+?)(?=\s|<\||\Z)")
BODY_END = re.compile(r"<\|(?:end|call|return)\|>")
BAR = "\uff5c"
CALL_BEGIN, CALL_SEP, CALL_END = (f"<{BAR}tool▁{part}{BAR}>" for part in ("call▁begin", "sep", "call▁end"))
CALLS = re.compile(f"<{BAR}tool▁calls▁(?:begin|end){BAR}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A parsed reply: its tool calls and the text `beside` them, or the `problem` with them. Without either, the reply
    is plain text: `beside` if the format puts marks around it, else the whole reply."""

    calls: tuple[ToolCall, ...] = ()
    beside: str = ""
    problem: str | None = None


Parse = Callable[[str, Sequence[Tool]], ParsedReply]
"""Parses what a reply says. The tools are those offered, or none if they are unknown. Raises `Malformed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A format of tool calls. With `only_offered`, a call of a tool that was not offered is malformed. `around` is what
    it writes before and after the arguments of a call to NAME, if an engine can be made to write it."""

    name: str
    parse: Parse
    marks: CallMarks = NO_MARKS
    only_offered: bool = True
    around: tuple[str, str] | None = None

    def __call__(self, text: str, tools: Sequence[Tool] = (), *, thinking: bool = False) -> ParsedReply:
        """Parse a reply; calls within its thinking, which the header may have opened, do not count."""
        thought, said = thought_and_said(text, self.marks, thinking=thinking)
        names = [tool.name for tool in tools]
        try:
            parsed = self.parse(said, tools)
            for call in parsed.calls if self.only_offered and names else ():
                if call.name not in names:
                    raise Malformed(f"there is no tool {call.name!r:.80}; use one of {', '.join(names)}")
        except Malformed as problem:
            return ParsedReply(problem=f"malformed tool call: {problem}")
        return replace(parsed, beside=(thought + parsed.beside).strip()) if parsed.calls else parsed


def with_ids(calls: Sequence[ToolCall], earlier: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Give each call an id that no `earlier` message uses; a new id of the policy's own is kept."""
    taken, given = taken_ids(earlier), list[ToolCall]()
    for call in calls:
        given.append(replace(call, id=call.id if call.id and call.id not in taken else new_id(taken)))
        taken.add(given[-1].id)
    return tuple(given)


def new_id(taken: Collection[str]) -> str:
    """Return an unused id of nine letters and digits, the only form that Mistral's templates accept."""
    number = len(taken)
    while (name := f"call{number:05d}") in taken:
        number += 1
    return name


def taken_ids(messages: Sequence[Message]) -> set[str]:
    calls = {call.id for message in messages for call in message.tool_calls}
    return calls | {message.tool_call_id for message in messages if message.tool_call_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """A format whose calls are JSON after `mark`. `head` matches from there to the JSON, and `tail` what follows it;
    `closing` is the tail's name in errors. If the head contains a `name`, the JSON is the arguments; else it is a call,
    or with `lists` a list of calls. `around` matches the text around all calls."""

    mark: str
    head: re.Pattern[str]
    tail: re.Pattern[str]
    closing: str = ""
    lists: bool = False
    around: re.Pattern[str] | None = None

    def __call__(self, text: str, tools: Sequence[Tool]) -> ParsedReply:
        """Return the calls and the text around them. Raises `Malformed`: one malformed call invalidates all."""
        calls, beside, at = list[ToolCall](), list[str](), 0
        while (start := text.find(self.mark, at)) >= 0:
            beside.append(text[at:start])
            head = self.head.match(text, start)
            if head is None:
                raise Malformed(f"expected a call after {self.mark}")
            value, end = decoded(text, head.end())
            tail = self.tail.match(text, end)
            if tail is None:
                raise Malformed(f"{self.closing} is missing")
            calls += self._calls(head, value)
            at = tail.end()
        whole = "".join([*beside, text[at:]])
        beside_all = (self.around.sub("", whole) if self.around else whole).strip()
        return ParsedReply(calls=tuple(calls), beside=beside_all) if calls else ParsedReply()

    def _calls(self, head: re.Match[str], value: Any) -> Iterator[ToolCall]:
        found = head.groupdict()
        if found.get("name") is None:
            yield from (call_of(one) for one in (value if self.lists and isinstance(value, list) else [value]))
        else:
            yield call_of({"name": found["name"].strip(), "arguments": value, "id": found.get("id")})


def _llama3_json(text: str, tools: Sequence[Tool]) -> ParsedReply:
    """Return the calls of a reply of JSON objects, separated by `;`; others are an answer."""
    body = LLAMA_ENDS.sub("", text).strip()
    tagged = body.startswith(PYTHON_TAG)
    body = body.removeprefix(PYTHON_TAG).strip()
    if not (tagged or body.startswith("{")):
        return ParsedReply()
    names = [tool.name for tool in tools]
    begun = LLAMA_BEGINS.match(body)
    try:
        objects = _objects(body)
    except Malformed:
        if tagged or (begun and (begun[1] in names or not names)):
            raise
        return ParsedReply()
    calls = [
        one
        for one in objects
        if isinstance(one, dict)
        and not one.keys().isdisjoint(("parameters", "arguments"))
        and isinstance(one.get("name"), str)
        and (one["name"] in names or not names)
    ]
    if tagged and not calls:
        raise Malformed(f"expected a call of an offered tool after {PYTHON_TAG}")
    if calls and len(calls) < len(objects):
        raise Malformed("unexpected JSON next to the call")
    return ParsedReply(calls=tuple(map(call_of, calls)))


def _objects(body: str) -> list[Any]:
    """Return the JSON values of a text that consists of nothing else. Raises `Malformed`."""
    values, at = list[Any](), 0
    while at < len(body):
        value, at = decoded(body, at)
        values.append(value)
        while at < len(body) and (body[at].isspace() or body[at] == ";"):
            at += 1
    return values


def _glm4_0414(text: str, tools: Sequence[Tool]) -> ParsedReply:
    """Return the calls of a reply that begins with a tool's name on its own line, followed by its arguments."""
    names, calls, at = {tool.name for tool in tools}, list[ToolCall](), 0
    while (head := GLM4_CALL.match(text, at)) and (head["name"] in names or not names):
        arguments, at = decoded(text, head.end())
        calls.append(call_of({"name": head["name"], "arguments": arguments}))
    return ParsedReply(calls=tuple(calls), beside=text[at:].strip()) if calls else ParsedReply()


def _harmony(text: str, tools: Sequence[Tool]) -> ParsedReply:
    """Return the calls of a reply in channels: messages with a recipient. Text for the user is `beside`."""
    calls, beside = list[ToolCall](), list[str]()
    for message in text.split("<|start|>"):
        header, has_body, rest = message.partition("<|message|>")
        recipient, channel = RECIPIENT.search(header), CHANNEL.search(header)
        body = BODY_END.split(rest)[0]
        if recipient and recipient[1] not in ("user", "assistant"):
            if not has_body:
                raise Malformed("<|message|> is missing")
            arguments, end = decoded(body, 0) if body.strip() else ({}, len(body))
            if body[end:].strip():
                raise Malformed("unexpected text after the arguments")
            calls.append(call_of({"name": recipient[1], "arguments": arguments}))
        elif channel and channel[1] != "analysis":
            beside.append(body)
    return ParsedReply(calls=tuple(calls), beside="\n".join(beside).strip())


TOOL_CALL = CallMarks(opening="<tool_call>", closing="</tool_call>")
DEEPSEEK = CallMarks(opening=f"<{BAR}tool▁calls▁begin{BAR}>", closing=f"<{BAR}tool▁calls▁end{BAR}>")
hermes = ToolFormat(
    name="hermes",
    marks=TOOL_CALL,
    only_offered=False,  # the environment or agent answers such calls itself
    around=('<tool_call>\n{"name": NAME, "arguments": ', "}\n</tool_call>"),
    parse=JsonCalls(
        mark="<tool_call>",
        head=re.compile(r"(?:<tool_call>\s*)+"),
        tail=re.compile(r"\s*(?:</tool_call>|\Z)"),
        closing="</tool_call>",
    ),
)
"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them; the format of Hermes and Qwen."""
llama3_json = ToolFormat(name="llama3_json", parse=_llama3_json, around=('{"name": NAME, "parameters": ', "}"))
mistral = ToolFormat(
    name="mistral",
    parse=JsonCalls(
        mark="[TOOL_CALLS]",
        head=re.compile(
            r"\[TOOL_CALLS\]\s*"
            r"(?:(?P<name>[^\s\[{]+)\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?(?:\[ARGS\]\s*)?(?=\{)|(?=[\[{]))"
        ),
        tail=re.compile(""),
        lists=True,
    ),
)
"""`[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` of newer models."""
deepseek_v3 = ToolFormat(
    name="deepseek_v3",
    marks=DEEPSEEK,
    parse=JsonCalls(
        mark=CALL_BEGIN,
        head=re.compile(rf"{CALL_BEGIN}\s*\w+{CALL_SEP}(?P<name>[^\n]+)\n```(?:json)?\s*"),
        tail=re.compile(rf"\s*```\s*{CALL_END}"),
        closing=f"``` and {CALL_END}",
        around=CALLS,
    ),
)
deepseek_v31 = ToolFormat(
    name="deepseek_v31",
    marks=DEEPSEEK,
    parse=JsonCalls(
        mark=CALL_BEGIN,
        head=re.compile(rf"{CALL_BEGIN}(?P<name>[^\n<]+){CALL_SEP}\s*"),
        tail=re.compile(rf"\s*{CALL_END}"),
        closing=CALL_END,
        around=CALLS,
    ),
)
glm4_0414 = ToolFormat(name="glm4_0414", parse=_glm4_0414)
harmony = ToolFormat(name="harmony", parse=_harmony)
plain_text = ToolFormat(name="none", parse=lambda text, tools: ParsedReply())
FORMATS: Mapping[str, ToolFormat] = {
    one.name: one
    for one in (hermes, llama3_json, mistral, deepseek_v3, deepseek_v31, glm4_0414, harmony, plain_text)
}  # fmt: skip


def own_format(name: str, setting: str) -> ToolFormat:
    """Import the user's format `module:function`, the value of `setting`. Raises `ConfigError`."""
    piece = load_piece(name, setting)
    if isinstance(piece, ToolFormat):
        return piece
    return ToolFormat(name=name, parse=lambda said, tools: piece(said), only_offered=False)


def check_tool_format(name: str, setting: str) -> None:
    """Check that this value of `setting` names a format. Raises `ConfigError`."""
    if is_piece(name):
        own_format(name, setting)
    elif name not in (*FORMATS, *VLLM_FORMATS, "auto"):
        raise ConfigError(f"{setting} is {name!r}; use {SHOWN}")
