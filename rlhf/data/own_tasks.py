"""Tasks made by a user's function, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from rlhf.config import load_bound
from rlhf.data.columns import column_of, short_value
from rlhf.data.config import DatasetConfig
from rlhf.data.preference import PairSet, pair_from_task, pair_set
from rlhf.data.row_images import read_image
from rlhf.errors import DataError, Raised, catch, describe_error
from rlhf.images import IMAGE_MARK
from rlhf.types import Message, Task

T = TypeVar("T")
END = object()
MOST = 1 << 22
"""Most tasks of one set, all in memory; a function that yields more may never end."""


def check_tasks(config: DatasetConfig, key: str) -> None:
    """Check that the function exists and accepts the recipe's arguments, without calling it. Raises `ConfigError`."""
    load_bound(str(config.tasks), f"{key}.tasks", config.arguments, given=0)


def own_tasks(config: DatasetConfig) -> list[Task]:
    """Return the first `config.limit` tasks of the function. Raises `ConfigError` where it cannot be called so, and
    `DataError` where it raises, yields anything else, or is endless or empty."""
    name = str(config.tasks)
    made = _made(name, load_bound(name, "tasks", config.arguments, given=0))
    if not isinstance(made, Iterable) or isinstance(made, str | Mapping):
        raise DataError(f"{name} returned {short_value(made)}; it must return tasks, any iterable of rlhf.types.Task")
    tasks = list(islice(_checked(made, config, name), config.limit or MOST + 1))
    if not tasks:
        raise DataError(f"{name} made no task; it must make at least one")
    if config.limit is None and len(tasks) > MOST:
        raise DataError(f"{name} made more than {MOST:,} tasks; let it end, or give limit")
    return tasks


def own_pairs(config: DatasetConfig) -> PairSet:
    """Return the pairs in the rows of those tasks. Raises as `own_tasks` does, and if there are no pairs."""
    name = str(config.tasks)
    found = (pair_from_task(config, task, _place(name, place)) for place, task in enumerate(own_tasks(config)))
    return pair_set(found, name)


def _checked(made: Iterable[Any], config: DatasetConfig, name: str) -> Iterator[Task]:
    tasks, place = _made(name, lambda: iter(made)), 0
    while (task := _made(name, lambda: next(tasks, END))) is not END:
        where, place = _place(name, place), place + 1
        if not isinstance(task, Task):
            raise DataError(f"{where} is {short_value(task)}; it must be an rlhf.types.Task")
        if wrong := _wrong_part(task):
            raise DataError(f"{where}: {wrong}")
        if config.response_column:
            column_of(task.row, config.response_column, "response_column", where)
        yield replace(task, where=where)


def _made(name: str, work: Callable[[], T]) -> T:
    outcome = catch(work)
    if isinstance(outcome, Raised):
        raise DataError(f"{name} failed: {describe_error(outcome.error)}") from outcome.error
    return outcome


def _wrong_part(task: Task) -> str:
    """Name the field that differs from `Task`'s declaration; empty if all fields are right."""
    messages = task.messages
    if not isinstance(messages, tuple) or not all(isinstance(message, Message) for message in messages):
        return f"messages is {short_value(messages)}; it must be a tuple of rlhf.types.Message"
    if not isinstance(task.id, str) or not isinstance(task.answer, str | None):
        return f"id and answer must be text, they are {short_value(task.id)} and {short_value(task.answer)}"
    if any(one.content.count(IMAGE_MARK) != len(one.images) for one in messages if one.images):
        return "a message has not one rlhf.images.IMAGE_MARK in its content for each of its images"
    for image in (image for one in messages for image in one.images):
        if read_image(image.data, None, "an image").sha256 != image.sha256:
            return "an image has a sha256 that is not that of its data"
    return "" if isinstance(task.row, Mapping) else f"row is {short_value(task.row)}; it must be a mapping"


def _place(name: str, place: int) -> str:
    return f"task {place + 1} of {name}"
