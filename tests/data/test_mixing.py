"""Several datasets in one order: exact shares, no draws, each through its own epochs."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from rlhf.data.mixing import MixedOrder, slot, whole_weights
from rlhf.data.order import TaskOrder
from rlhf.errors import DataError

MIXTURES = [(1, 1), (1, 2), (7, 3), (1, 1, 1), (5, 3, 2), (1, 100), (97, 89, 83, 7), (7473, 12000)]


def by_sorting(weights: tuple[int, ...], count: int) -> list[tuple[int, int]]:
    """The reference: every task with the moment it is due, put in order."""
    due = [(Fraction(2 * j + 1, 2 * w), k, j) for k, w in enumerate(weights) for j in range(count)]
    return [(k, j) for _, k, j in sorted(due)[:count]]


@pytest.mark.parametrize("weights", MIXTURES)
def test_the_tasks_come_in_the_order_in_which_they_are_due(weights: tuple[int, ...]) -> None:
    assert [slot(ordinal, weights) for ordinal in range(300)] == by_sorting(weights, 300)


def test_far_into_a_run_a_task_is_found_as_fast_and_as_exactly() -> None:
    weights, far = (7473, 12000, 31), 10**9
    slots = [slot(far + n, weights) for n in range(2000)]
    for dataset in range(3):
        places = [place for which, place in slots if which == dataset]
        assert places == list(range(places[0], places[0] + len(places))), "one after another, none left out"


def test_weights_are_whole_numbers_in_lowest_terms() -> None:
    assert whole_weights([0.7, 0.3]) == (7, 3)
    assert whole_weights([2, 4.0]) == (1, 2)
    assert whole_weights([0.1, 0.25, 1e-3]) == (100, 250, 1)
    assert whole_weights([5]) == (1,)


def rows(name: str, count: int) -> list[str]:
    return [f"{name}{index}" for index in range(count)]


def test_each_dataset_walks_its_own_epochs() -> None:
    order = MixedOrder([rows("a", 3), rows("b", 10)], [1.0, 1.0], seed=5)
    drawn = [order[ordinal] for ordinal in range(60)]
    few, many = [row for row in drawn if row[0] == "a"], [row for row in drawn if row[0] == "b"]
    assert len(few) == len(many) == 30
    assert all(sorted(few[n : n + 3]) == rows("a", 3) for n in range(0, 30, 3))
    assert all(sorted(many[n : n + 10]) == rows("b", 10) for n in range(0, 30, 10))


def test_without_weights_every_task_comes_once_an_epoch_of_all() -> None:
    order = MixedOrder([rows("a", 3), rows("b", 9)], [None, None], seed=5)
    assert sorted(order[ordinal] for ordinal in range(12)) == sorted(rows("a", 3) + rows("b", 9))


def test_an_ordinal_means_the_same_task_whatever_was_asked_before() -> None:
    def order() -> MixedOrder[str]:
        return MixedOrder([rows("a", 3), rows("b", 7), rows("c", 2)], [0.5, 0.3, 0.2], seed=1)

    expected = dict(enumerate(order()[ordinal] for ordinal in range(100)))
    asked = list(range(100))
    random.Random(0).shuffle(asked)
    again = order()
    assert {ordinal: again[ordinal] for ordinal in asked} == expected


def test_one_dataset_alone_has_the_order_it_always_had() -> None:
    alone, mixed = TaskOrder(rows("a", 10), seed=7), MixedOrder([rows("a", 10)], [None], seed=7)
    assert [mixed[ordinal] for ordinal in range(40)] == [alone[ordinal] for ordinal in range(40)]


def test_datasets_of_one_size_have_orders_of_their_own() -> None:
    order = MixedOrder([rows("a", 50), rows("b", 50)], [None, None], seed=7)
    drawn = [order[ordinal] for ordinal in range(100)]
    assert [row[1:] for row in drawn if row[0] == "a"] != [row[1:] for row in drawn if row[0] == "b"]


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError):
        MixedOrder([rows("a", 2), []], [1.0, 1.0], seed=0)
    with pytest.raises(IndexError):
        MixedOrder([rows("a", 2)], [None], seed=0)[-1]
