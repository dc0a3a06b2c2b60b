"""One row of a dataset becomes one task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.config import DatasetConfig
from rlhf.errors import DataError
from rlhf.types import Message, Task

Row = Mapping[str, Any]


def task_from_row(config: DatasetConfig, row: Row, task_id: str, where: str) -> Task:
    """Return the task of `row`. `where` names the row in errors ("train.jsonl, row 3"). Raises `DataError`."""
    if config.response_column:
        column_of(row, config.response_column, "response_column", where)
    return Task(
        id=task_id, messages=messages_of(config, row, where), answer=answer_of(config, row, where), row=dict(row)
    )


def answer_of(config: DatasetConfig, row: Row, where: str) -> str | None:
    """Return the row's reference answer, or None if the dataset has no answers. Raises `DataError`."""
    if config.answer_column is None:
        return None
    text = str(column_of(row, config.answer_column, "answer_column", where))
    if config.answer_pattern is None:
        return text
    match = re.search(config.answer_pattern, text)
    if match is None or match[1] is None:
        raise DataError(
            f"{where}: answer_pattern {config.answer_pattern!r} finds no answer in column "
            f"{config.answer_column!r}, which reads {short_value(text)}"
        )
    return match[1].strip()


def messages_of(config: DatasetConfig, row: Row, where: str) -> tuple[Message, ...]:
    """Return the messages of the prompt column, dressed. Raises `DataError`."""
    prompt = column_of(row, config.prompt_column, "prompt_column", where)
    if isinstance(prompt, str):
        return dressed(config, [Message(role="user", content=prompt)])
    return dressed(config, chat_of(prompt, config.prompt_column, where))


def dressed(config: DatasetConfig, prompt: Sequence[Message]) -> tuple[Message, ...]:
    """Add the recipe's system message and suffix to a prompt."""
    chat, last = list(prompt), prompt[-1]
    chat[-1] = Message(role=last.role, content=last.content + config.prompt_suffix)
    system = [Message(role="system", content=config.system_prompt)] if config.system_prompt else []
    return (*system, *chat)


def chat_of(value: Any, column: str, where: str) -> list[Message]:
    """Return the messages of a column. Raises `DataError`."""
    if not is_chat(value):
        raise DataError(
            f"{where}: column {column!r} must be text or a list of messages with role and content, "
            f"it reads {short_value(value)}"
        )
    return [Message(role=message["role"], content=message["content"]) for message in value]


def is_chat(prompt: Any) -> bool:
    """Whether a column's value is a list of messages."""
    return (
        isinstance(prompt, Sequence)
        and len(prompt) > 0
        and all(
            isinstance(message, Mapping) and isinstance(message.get(key), str)
            for message in prompt
            for key in ("role", "content")
        )
    )


def column_of(row: Row, column: str, key: str, where: str) -> Any:
    """Return the value of a column. Readers fill missing values with None, so None counts as absent."""
    value = row.get(column)
    if value is None:
        raise DataError(f"{where} has no column {column!r} (it has {_names(row)}); name the right one with {key}")
    return value


def _names(row: Row) -> str:
    return ", ".join(repr(name) for name, value in row.items() if value is not None) or "none"


def short_value(value: Any) -> str:
    """Shorten a value for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
