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
    """The task of `row`. `where` names the row in errors ("train.jsonl, row 3"). Raises `DataError`."""
    if config.response_column:
        _column(row, config.response_column, "response_column", where)
    return Task(id=task_id, messages=_messages(config, row, where), answer=answer_of(config, row, where), row=dict(row))


def answer_of(config: DatasetConfig, row: Row, where: str) -> str | None:
    """The reference answer within the row, or None when the dataset has none. Raises `DataError`."""
    if config.answer_column is None:
        return None
    text = str(_column(row, config.answer_column, "answer_column", where))
    if config.answer_pattern is None:
        return text
    match = re.search(config.answer_pattern, text)
    if match is None or match[1] is None:
        raise DataError(
            f"{where}: answer_pattern {config.answer_pattern!r} finds no answer in column "
            f"{config.answer_column!r}, which reads {_shown(text)}"
        )
    return match[1].strip()


def _messages(config: DatasetConfig, row: Row, where: str) -> tuple[Message, ...]:
    prompt = _column(row, config.prompt_column, "prompt_column", where)
    chat = [Message(role="user", content=prompt)] if isinstance(prompt, str) else _chat(prompt, config, where)
    last = chat[-1]
    chat[-1] = Message(role=last.role, content=last.content + config.prompt_suffix)
    system = [Message(role="system", content=config.system_prompt)] if config.system_prompt else []
    return (*system, *chat)


def _chat(prompt: Any, config: DatasetConfig, where: str) -> list[Message]:
    if not _is_chat(prompt):
        raise DataError(
            f"{where}: column {config.prompt_column!r} must be text or a list of messages with role and content, "
            f"it reads {_shown(prompt)}"
        )
    return [Message(role=message["role"], content=message["content"]) for message in prompt]


def _is_chat(prompt: Any) -> bool:
    return (
        isinstance(prompt, Sequence)
        and len(prompt) > 0
        and all(
            isinstance(message, Mapping) and isinstance(message.get(key), str)
            for message in prompt
            for key in ("role", "content")
        )
    )


def _column(row: Row, column: str, key: str, where: str) -> Any:
    """The value of a column. Readers fill what a row leaves out with None, so None counts as absent."""
    value = row.get(column)
    if value is None:
        raise DataError(f"{where} has no column {column!r} (it has {_names(row)}); name the right one with {key}")
    return value


def _names(row: Row) -> str:
    return ", ".join(repr(name) for name, value in row.items() if value is not None) or "none"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
