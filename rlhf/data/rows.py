"""One row of a dataset becomes one task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rlhf.data.columns import Row, check_columns, column_text, column_value, short_value
from rlhf.data.config import DatasetConfig
from rlhf.data.conversations import chat_of, system_of, tools_of
from rlhf.data.expressions import row_text
from rlhf.data.row_images import with_row_images
from rlhf.errors import DataError
from rlhf.types import Message, Task


def task_from_row(config: DatasetConfig, row: Row, task_id: str, where: str) -> Task:
    """Return the task of `row`. `where` names the row in errors ("train.jsonl, row 3"). Raises `DataError`."""
    asked = None if config.template else config.prompt_column
    check_columns(row, where, prompt_column=asked, answer_column=config.answer_column)
    return Task(
        id=task_id,
        messages=messages_of(config, row, where),
        answer=answer_of(config, row, where),
        row=dict(row),
        tools=tools_of(config, row, where),
        where=where,
    )


def answer_of(config: DatasetConfig, row: Row, where: str) -> str | None:
    """Return the row's reference answer, or None if the dataset has no answers. Raises `DataError`."""
    if config.answer_column is None:
        return None
    text = column_text(row, config.answer_column, "answer_column", where)
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
    """Return the messages of the prompt column, or of the template, dressed. Raises `DataError`, also for a prompt that
    asks nothing."""
    if config.template:
        question = row_text(config.template, row, "template", where)
        if not question.strip():
            raise DataError(f"{where}: template makes a blank question; remove the row, or change the template")
        return dressed(config, row, [Message(role="user", content=question)], where)
    prompt = chat_of(row, config.prompt_column, "prompt_column", where)
    if config.prompt_column == "instruction" and column_value(row, "input") not in (None, ""):
        raise DataError(
            f"{where} has an 'input' in addition to its 'instruction', which the prompt would leave out; join them"
        )
    last = prompt[-1]
    if last.role == "assistant":
        raise DataError(
            f"{where}: column {config.prompt_column!r} ends with the assistant's reply, but a prompt ends before it; "
            "kind: sft learns from whole conversations"
        )
    if last.role not in ("user", "tool"):
        raise DataError(
            f"{where}: column {config.prompt_column!r} ends with the {last.role} message, so it has no question"
        )
    if last.role == "user" and not last.content.strip():
        raise DataError(f"{where}: the question in column {config.prompt_column!r} is blank; remove the row")
    return dressed(config, row, prompt, where)


def dressed(config: DatasetConfig, row: Row, prompt: Sequence[Message], where: str) -> tuple[Message, ...]:
    """Add the row's images, the system message and the recipe's suffix to a prompt. Raises `DataError` if it has no
    place for them."""
    *before, last = with_row_images(config, row, prompt, where)
    if config.prompt_suffix and last.role != "user":
        raise DataError(f"{where} does not end with a question that prompt_suffix could follow; remove prompt_suffix")
    rule = system_of(config, row, where)
    if rule and prompt[0].role in ("system", "developer"):
        given = "system_template" if config.system_template else "system_prompt" if config.system_prompt else ""
        raise DataError(
            f"{where} has one system message in its conversation and another in "
            f"{given or f'column {config.system_column!r}'}; remove one of them"
        )
    system = [Message(role="system", content=rule)] if rule else []
    return (*system, *before, replace(last, content=last.content + config.prompt_suffix))
