"""Marks (hashes) of conversations: conversations whose messages are all equal have the same mark. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b

from rlhf.chat.thinking import MARK, thought_and_said
from rlhf.types import Message, Tool

Mark = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request of an agent to the policy. `reads_calls`: whether tool calls in the reply are parsed; `max_tokens`: the
    longest reply, None leaves it to the budgets; `stop`: texts that end it; `seed`: of the sampling, if given;
    `structure`: the grammar of the reply, as in `Sampling`; `prompt`: a text or token ids in place of
    messages, which `Capture` sets to its text."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    reads_calls: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    structure: str = ""
    prompt: str | tuple[int, ...] | None = None


def message_marks(asked: AgentRequest) -> list[Mark]:
    """Return a mark for every message: it covers all messages up to it, and the tools offered or the prompt."""
    given = [asdict(tool) for tool in asked.tools] if asked.prompt is None else {"prompt": asked.prompt}
    return extended(_mark(b"", json.dumps(given)), asked.messages)


def extended(mark: Mark, messages: Sequence[Message]) -> list[Mark]:
    """Return the marks of the conversation continued with `messages`."""
    marks = []
    for message in messages:
        mark = _mark(mark, said(message))
        marks.append(mark)
    return marks


def said(message: Message) -> str:
    """Return what identifies a message: role, text, and tool calls by name and arguments, without ids, which frameworks
    renew. Numbers are compared by value: an agent in JavaScript writes 1 where the policy wrote 1.0. Thinking counts
    the same within a reply's text and in `reasoning_content`."""
    calls = [[call.name, json.loads(json.dumps(call.arguments), parse_float=_number)] for call in message.tool_calls]
    if message.role != "assistant":
        return json.dumps(
            [message.role, message.content, calls, *(one.sha256 for one in message.images)], sort_keys=True
        )
    thought, content = thought_and_said(message.content)
    thought = MARK.sub("", thought).strip() or (message.reasoning_content or "").strip()
    content = content.strip() if thought else message.content
    return json.dumps([message.role, thought, content, calls], sort_keys=True)


def _number(text: str) -> float:
    """Read a number of JSON, a whole one as an int."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _mark(before: Mark, text: str) -> Mark:
    return blake2b(before + text.encode(), digest_size=16).digest()
