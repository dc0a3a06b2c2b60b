"""Conversations by their marks: two of them have the same mark where all was the same so far. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b

from rlhf.types import Message, Tool

Mark = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """What an agent asks of the policy. `reads_calls` is whether tool calls in the reply are read; `max_tokens` is the
    longest reply that it wants, None leaves it to the budgets; `seed` decides its draws where it is given."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    reads_calls: bool = False
    max_tokens: int | None = None
    seed: int | None = None


def message_marks(asked: AgentRequest) -> list[Mark]:
    """One for every message: of all that was said up to it, under the tools that were offered."""
    mark = _mark(b"", json.dumps([asdict(tool) for tool in asked.tools]))
    return extended(mark, asked.messages)


def extended(mark: Mark, messages: Sequence[Message]) -> list[Mark]:
    """The marks of a conversation that goes on with `messages`."""
    marks = []
    for message in messages:
        mark = _mark(mark, said(message))
        marks.append(mark)
    return marks


def said(message: Message) -> str:
    """All that counts of a message: role, text, and the tool calls by name and arguments, however these were written.

    Ids of calls are names that frameworks make anew; an answer is known by its place.
    """
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    return json.dumps([message.role, message.content, calls], sort_keys=True)


def _mark(before: Mark, text: str) -> Mark:
    return blake2b(before + text.encode(), digest_size=16).digest()
