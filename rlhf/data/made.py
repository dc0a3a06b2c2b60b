"""The made tasks: problems, and demonstrations of them, that their settings alone decide."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf.data import programs, sorting
from rlhf.data.config import MadeConfig, SortingConfig
from rlhf.types import Message, Task


def made_tasks(config: MadeConfig) -> list[Task]:
    """Every problem of the set. Raises `DataError` when its fold has not so many."""
    return sorting.sorting_tasks(config) if isinstance(config, SortingConfig) else programs.program_tasks(config)


def demonstrations(config: MadeConfig, count: int, seed: int) -> Iterator[tuple[tuple[Message, ...], str]]:
    """`count` pairs of messages and reply, mixed on purpose, from the train fold only."""
    if isinstance(config, SortingConfig):
        return sorting.sorting_demonstrations(config, count, seed)
    return programs.program_demonstrations(config, count, seed)
