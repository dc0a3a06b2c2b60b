"""Which rows of a dataset are asked: prompts of the right length, and held-out problems once each. Pure functions."""

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
    """The tasks that are left, and what people are told of the others; empty when none was left out."""

    tasks: list[Task]
    told: str = ""


def of_right_length(tasks: Sequence[Task], config: DatasetConfig, prompt_tokens: PromptTokens, key: str) -> Selection:
    """Leave out prompts that are shorter or longer than `config` wants. Raises `DataError` when none is left.

    `key` is what people call the dataset. Without limits nothing is rendered.
    """
    least, most = config.min_prompt_tokens, config.max_prompt_tokens
    if least is None and most is None:
        return Selection(tasks=list(tasks))
    lengths = [prompt_tokens(task) for task in tasks]
    short = [length < (least or 0) for length in lengths]
    long = [most is not None and length > most for length in lengths]
    kept = [task for task, *out in zip(tasks, short, long, strict=True) if not any(out)]
    told = _told(key, len(tasks), sum(short), sum(long), config)
    if not kept:
        raise DataError(f"{told}; prompts have {min(lengths)} to {max(lengths)} tokens, so none is left")
    return Selection(tasks=kept, told=told if len(kept) < len(tasks) else "")


def distinct(tasks: Sequence[Task], key: str) -> Selection:
    """Every problem once: rows with the same prompt and the same answer are one problem. What an environment asks has
    no prompt yet, and is another problem for every seed.

    Raises `DataError` for rows that ask the same and want different answers: one of them cannot be right.
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
    told = f"{key}: {again} of {len(tasks)} rows repeat a problem; each is evaluated once" if again else ""
    return Selection(tasks=list(first.values()), told=told)


def _told(key: str, rows: int, short: int, long: int, config: DatasetConfig) -> str:
    reasons = [
        f"{count} {word} {limit} prompt tokens"
        for count, word, limit in (
            (short, "below", config.min_prompt_tokens),
            (long, "above", config.max_prompt_tokens),
        )
        if count
    ]
    return f"{key}: {short + long} of {rows} rows left out ({', '.join(reasons)})"
