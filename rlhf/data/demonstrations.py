"""Demonstrations for supervised fine-tuning: conversations, and which of their replies are imitated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.data.columns import Row, check_columns, suggested_lines
from rlhf.data.config import DatasetConfig
from rlhf.data.conversations import chat_of, check_answered, tools_of
from rlhf.data.preference import PreferencePair
from rlhf.data.rows import dressed, messages_of
from rlhf.errors import DataError
from rlhf.types import Message, Task, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A conversation whose messages at the places `replies` are imitated; it ends with the last of them."""

    messages: tuple[Message, ...]
    replies: tuple[int, ...]
    tools: tuple[Tool, ...] = ()
    where: str = ""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages before the first reply."""
        return self.messages[: self.replies[0]]


def demonstration_from_row(config: DatasetConfig, row: Row, where: str) -> Demonstration:
    """Return the prompt with the reply of `response_column`, or a whole conversation. Raises `DataError`."""
    asked = None if config.template else config.prompt_column
    check_columns(row, where, also=("response_column",), prompt_column=asked, response_column=config.response_column)
    tools = tools_of(config, row, where)
    if config.response_column:
        return _answered(messages_of(config, row, where), row, config.response_column, config, where, tools)
    if config.template:
        raise DataError(f"{where}: template makes only the question; name the reply's column with response_column")
    chat = chat_of(row, config.prompt_column, "prompt_column", where)
    lines = suggested_lines(row, "response_column")
    if chat[-1].role != "assistant" and (lines or all(one.role != "assistant" for one in chat)):
        raise DataError(
            f"{where}: column {config.prompt_column!r} ends with the {chat[-1].role}'s message, so there is no "
            f"reply to imitate; write {lines or 'response_column, the column with the reply'}"
        )
    while chat[-1].role != "assistant":  # ShareGPT: what follows the last reply teaches nothing
        chat.pop()
    return _imitating(dressed(config, row, chat, where), 0, config, where, tools)


def demonstration_of_task(config: DatasetConfig, task: Task, where: str) -> Demonstration:
    """Return the demonstration of a task that a function made. Raises `DataError`."""
    if column := config.response_column or config.chosen_column:
        return _answered(task.messages, task.row, column, config, where, task.tools)
    if not task.messages or task.messages[-1].role != "assistant":
        raise DataError(
            f"{where} does not end with a reply to imitate; name the column of its row with response_column"
        )
    return _imitating(task.messages, 0, config, where, task.tools)


def demonstration_of_pair(pair: PreferencePair) -> Demonstration:
    messages = (*pair.prompt, Message(role="assistant", content=pair.chosen))
    return Demonstration(messages=messages, replies=(len(pair.prompt),), tools=pair.tools, where=pair.where)


def _answered(
    prompt: Sequence[Message], row: Row, column: str, config: DatasetConfig, where: str, tools: tuple[Tool, ...]
) -> Demonstration:
    """Return the prompt with the reply in a column: a text, or the messages that follow."""
    said = chat_of(row, column, "response_column", where, role="assistant")
    check_answered(said, column, where)
    if said[0].role in ("system", "developer", "user"):
        raise DataError(
            f"{where}: column {column!r} holds a whole conversation; write prompt_column: {column} and leave out "
            "response_column"
        )
    return _imitating((*prompt, *said), len(prompt), config, where, tools)


def _imitating(
    messages: tuple[Message, ...], first: int, config: DatasetConfig, where: str, tools: tuple[Tool, ...]
) -> Demonstration:
    asked = next((place for place, one in enumerate(messages) if one.role == "user"), len(messages))
    replies = [place for place, one in enumerate(messages) if one.role == "assistant" and place >= max(first, asked)]
    if not replies:
        raise DataError(f"{where}: no reply follows a question, so there is none to imitate")
    for place in replies:
        if not messages[place].content.strip() and not messages[place].tool_calls:
            raise DataError(f"{where}: a reply to imitate is blank; remove the row")
    imitated = replies if config.replies == "every" else replies[-1:]
    return Demonstration(messages=messages, replies=tuple(imitated), tools=tools, where=where)
