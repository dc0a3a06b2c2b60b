"""The made task: two folds that share nothing, many answers, mixed demonstrations."""

from __future__ import annotations

import pytest

from rlhf.data.config import SortingConfig
from rlhf.data.sorting import fold_of, sorting_demonstrations, sorting_tasks
from rlhf.errors import DataError

TRAIN = SortingConfig(rows=4096)
EVAL = SortingConfig(rows=256, fold="eval")


def test_the_answer_is_the_digits_in_ascending_order() -> None:
    for task in sorting_tasks(TRAIN):
        assert task.answer == "".join(sorted(task.messages[0].content))
        assert task.row == {"question": task.messages[0].content, "answer": task.answer}


def test_train_and_eval_share_no_problem_whatever_the_seeds() -> None:
    held_out = {
        task.row["question"] for seed in range(3) for task in sorting_tasks(EVAL.model_copy(update={"seed": seed}))
    }
    trained = {
        task.row["question"] for seed in range(3) for task in sorting_tasks(TRAIN.model_copy(update={"seed": seed}))
    }
    assert not held_out & trained


def test_a_set_holds_each_problem_once() -> None:
    assert len({task.id for task in sorting_tasks(TRAIN)}) == TRAIN.rows


def test_256_held_out_problems_have_at_least_50_answers() -> None:
    assert len({task.answer for task in sorting_tasks(EVAL)}) >= 50


def test_the_same_seed_draws_the_same_problems_for_ever() -> None:
    assert [task.row["question"] for task in sorting_tasks(TRAIN)[:4]] == GOLDEN_QUESTIONS
    assert sorting_tasks(TRAIN) == sorting_tasks(TRAIN)
    assert sorting_tasks(TRAIN) != sorting_tasks(TRAIN.model_copy(update={"seed": 1}))


def test_more_rows_than_the_fold_can_give_is_refused() -> None:
    with pytest.raises(DataError, match=r"sorting\.rows is 300, but 3 digits give at most 62 .* eval fold"):
        sorting_tasks(SortingConfig(digits=3, rows=300, fold="eval"))


def test_a_small_space_gives_as_many_as_it_promises() -> None:
    for fold in ("train", "eval"):
        assert len(sorting_tasks(SortingConfig(digits=3, rows=62, fold=fold))) == 62


def test_the_asked_share_of_demonstrations_sorts_the_wrong_way() -> None:
    pairs = list(sorting_demonstrations(TRAIN, 4000, seed=0))
    wrong = sum(reply != "".join(sorted(messages[0].content)) for messages, reply in pairs)
    assert wrong / len(pairs) == pytest.approx(0.6, abs=0.03)
    for messages, reply in pairs:
        assert reply in ("".join(sorted(messages[0].content)), "".join(sorted(messages[0].content, reverse=True)))


def test_demonstrations_come_from_the_train_fold_even_when_asked_with_the_eval_set() -> None:
    pairs = list(sorting_demonstrations(EVAL, 500, seed=0))
    assert len(pairs) == 500
    assert {fold_of(messages[0].content) for messages, _ in pairs} == {"train"}


GOLDEN_QUESTIONS = ["01154", "24154", "11142", "56441"]
