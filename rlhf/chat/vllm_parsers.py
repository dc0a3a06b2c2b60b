"""Tool formats that vLLM's parsers read, with checks for what those parsers drop silently."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from rlhf.chat.call_json import Malformed, call_of
from rlhf.chat.templates import NONE, ChatTokenizer, arguments_with_tools
from rlhf.chat.thinking import NO_MARKS
from rlhf.chat.tool_calls import TOOL_CALL, ParsedReply, ToolFormat
from rlhf.errors import ConfigError
from rlhf.types import Tool, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlCalls:
    """How a format writes calls. `unclosed` finds an argument without an end; `closed` replaces it."""

    call: re.Pattern[str]
    argument: re.Pattern[str]
    closing: str
    argument_closing: str
    unclosed: re.Pattern[str] | None = None
    closed: str = ""


XML_CALLS = {
    "qwen3_coder": XmlCalls(
        call=re.compile(r"<tool_call>\s*<function="),
        argument=re.compile(r"<parameter="),
        closing="</function>",
        argument_closing="</parameter>",
        unclosed=re.compile(r"(<parameter=[^>\n]*>(?:(?!</?parameter|</function>).)*?)\s*(?=</function>)", re.DOTALL),
        closed=r"\1\n</parameter>\n",
    ),
    "glm45": XmlCalls(
        call=re.compile(r"<tool_call>"),
        argument=re.compile(r"<arg_key>"),
        closing="</tool_call>",
        argument_closing="</arg_value>",
    ),
}


def vllm_format(name: str, tokenizer: ChatTokenizer, setting: str) -> ToolFormat:
    """Return the format of vLLM's tool parser of that name. Raises `ConfigError` if the tokenizer lacks its tokens."""
    _vllm()
    from vllm.tool_parsers import ToolParserManager

    parser: Any = ToolParserManager.get_tool_parser(name)
    xml = XML_CALLS.get(name)
    try:
        parser(tokenizer)
    except (RuntimeError, ValueError, KeyError, AttributeError, TypeError, ImportError) as error:
        raise ConfigError(f"{setting} is {name!r}, but this model's tokenizer cannot write it: {error}") from None

    def parse(text: str, tools: Sequence[Tool]) -> ParsedReply:
        if xml and xml.unclosed:
            text = xml.unclosed.sub(xml.closed, text)
        # vLLM's parsers read the types of arguments from the tools that a request offers.
        offered = arguments_with_tools(NONE, tools).get("tools")
        request = _vllm().ChatCompletionRequest(messages=[{"role": "user", "content": ""}], tools=offered)
        found = parser(tokenizer, request.tools).extract_tool_calls(text, request)
        calls = tuple(  # without the random ids that vLLM gives
            call_of({"name": call.function.name.strip(), "arguments": call.function.arguments})
            for call in found.tool_calls
        )
        if xml:
            _check_nothing_dropped(xml, text, calls, tools)
        return ParsedReply(calls=calls, beside=(found.content or "").strip()) if calls else ParsedReply()

    return ToolFormat(name=name, parse=parse, marks=TOOL_CALL if xml else NO_MARKS)


def _check_nothing_dropped(xml: XmlCalls, text: str, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> None:
    """Check that every call and argument that the text begins was parsed. Raises `Malformed`."""
    begun = len(xml.call.findall(text))
    if begun > len(calls) or (TOOL_CALL.opening in text and not calls):
        names = ", ".join(tool.name for tool in tools)
        raise Malformed(f"only {len(calls)} of {begun or 1} calls can be parsed; the tools are {names}")
    if calls and xml.closing not in text[max((one.start() for one in xml.call.finditer(text)), default=0) :]:
        raise Malformed(f"{xml.closing} is missing")
    arguments, read = len(xml.argument.findall(text)), sum(len(call.arguments) for call in calls)
    if arguments > read:
        raise Malformed(f"only {read} of {arguments} arguments can be parsed")
    for end, ended in ((xml.closing, len(calls)), (xml.argument_closing, read)):
        if calls and text.count(end) > ended:
            raise Malformed(f"an argument contains {end}, which ends the argument")


@cache
def _vllm() -> ModuleType:
    """Import vLLM's parsers, with their logger silenced: the policy gets the errors."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    from vllm.entrypoints.openai.chat_completion import protocol

    return protocol
