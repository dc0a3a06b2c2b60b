"""Select the rows of a dataset: prompts of the right length, and each held-out problem once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf.data.config import DatasetConfig
from rlhf.errors import DataError
from rlhf.types import Task

PromptTokens = Callable[[Task], int]
"""Tokens of a task's prompt, as the model's chat template renders it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The remaining tasks, and a message about omitted ones; empty if all remain."""

    tasks: list[Task]
    message: str = ""


def of_right_length(tasks: Sequence[Task], config: DatasetConfig, prompt_tokens: PromptTokens, key: str) -> Selection:
    """Omit prompts that are shorter or longer than `config` allows. Raises `DataError` if no prompt remains.

    `key` is the dataset's key in the recipe. Without limits nothing is rendered.
    """
    least, most = config.min_prompt_tokens, config.max_prompt_tokens
    if least is None and most is None:
        return Selection(tasks=list(tasks))
    lengths = [prompt_tokens(task) for task in tasks]
    short = [length < (least or 0) for length in lengths]
    long = [most is not None and length > most for length in lengths]
    remaining = [task for task, *out in zip(tasks, short, long, strict=True) if not any(out)]
    message = _omitted(key, len(tasks), sum(short), sum(long), config)
    if not remaining:
        raise DataError(f"{message}; prompts have {min(lengths)} to {max(lengths)} tokens, so no prompt remains")
    return Selection(tasks=remaining, message=message if len(remaining) < len(tasks) else "")


def distinct(tasks: Sequence[Task], key: str) -> Selection:
    """Return every problem once: rows with the same prompt and answer are one problem. An environment's task has no
    prompt yet, and is another problem for every seed.

    Raises `DataError` for rows with the same prompt and different answers.
    """
    first: dict[object, Task] = {}
    for task in tasks:
        known = first.setdefault(task.messages or task.id, task)
        if known.answer != task.answer:
            raise DataError(
                f"{key}: {known.id} and {task.id} have the same prompt and different answers ({known.answer!r} and "
                f"{task.answer!r}); a problem is evaluated once, so drop one of them"
            )
    again = len(tasks) - len(first)
    message = f"{key}: {again} of {len(tasks)} rows repeat a problem; each is evaluated once" if again else ""
    return Selection(tasks=list(first.values()), message=message)


def _omitted(key: str, rows: int, short: int, long: int, config: DatasetConfig) -> str:
    reasons = [
        f"{count} {word} {limit} prompt tokens"
        for count, word, limit in (
            (short, "below", config.min_prompt_tokens),
            (long, "above", config.max_prompt_tokens),
        )
        if count
    ]
    return f"{key}: {short + long} of {rows} rows left out ({', '.join(reasons)})"
