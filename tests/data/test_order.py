"""The order of tasks is a pure function of seed and epoch."""

from __future__ import annotations

import random

import pytest

from rlhf.data.order import TaskOrder
from rlhf.errors import DataError
from rlhf.types import Task

TASKS = [Task(id=str(index), messages=()) for index in range(10)]


def ids(order: TaskOrder, start: int, stop: int) -> list[int]:
    return [int(order[ordinal].id) for ordinal in range(start, stop)]


def test_every_task_comes_exactly_once_an_epoch() -> None:
    order = TaskOrder(TASKS, seed=7)
    for epoch in range(20):
        assert sorted(ids(order, 10 * epoch, 10 * epoch + 10)) == list(range(10))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order = TaskOrder(TASKS, seed=7)
    assert ids(order, 0, 10) != ids(order, 10, 20)
    assert ids(order, 0, 10) != ids(TaskOrder(TASKS, seed=8), 0, 10)


def test_an_ordinal_means_the_same_task_whatever_was_asked_before() -> None:
    expected = ids(TaskOrder(TASKS, seed=7), 0, 200)
    asked = list(range(200))
    random.Random(0).shuffle(asked)
    order = TaskOrder(TASKS, seed=7)
    assert {ordinal: int(order[ordinal].id) for ordinal in asked} == dict(enumerate(expected))


def test_the_order_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert ids(TaskOrder(TASKS, seed=7), 0, 20) == GOLDEN


def test_nothing_can_be_put_in_order_without_tasks() -> None:
    with pytest.raises(DataError, match="the dataset is empty"):
        TaskOrder([], seed=0)
    with pytest.raises(IndexError):
        TaskOrder(TASKS, seed=0)[-1]


GOLDEN = [8, 4, 1, 6, 3, 2, 7, 5, 9, 0, 3, 9, 1, 6, 2, 5, 4, 8, 0, 7]
