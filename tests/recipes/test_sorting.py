"""Sorting: two splits that share nothing, many answers, mixed demonstrations."""

from __future__ import annotations

import pytest

from recipes.tasks.sorting import demonstrated, demonstrations, split_of, tasks
from rlhf.errors import DataError

TRAIN = tasks(rows=4096)
EVAL = tasks(rows=256, split="eval")


def test_the_answer_is_the_digits_in_ascending_order() -> None:
    for task in TRAIN:
        assert task.answer == "".join(sorted(task.messages[0].content))
        assert task.row == {"question": task.messages[0].content, "answer": task.answer}


def test_train_and_eval_share_no_problem_whatever_the_seeds() -> None:
    held_out = {task.row["question"] for seed in range(3) for task in tasks(rows=256, split="eval", seed=seed)}
    trained = {task.row["question"] for seed in range(3) for task in tasks(rows=4096, seed=seed)}
    assert not held_out & trained


def test_256_held_out_problems_have_at_least_50_answers() -> None:
    assert len({task.answer for task in EVAL}) >= 50


def test_the_same_seed_draws_the_same_problems_for_ever() -> None:
    assert [task.row["question"] for task in TRAIN[:4]] == GOLDEN_QUESTIONS
    assert tasks(rows=4096) == TRAIN
    assert tasks(rows=4096, seed=1) != TRAIN


def test_more_rows_than_the_split_can_give_is_refused() -> None:
    with pytest.raises(DataError, match=r"rows is 300, but 3 digits give at most 62 .* eval split"):
        tasks(digits=3, rows=300, split="eval")


def test_the_asked_share_of_demonstrations_sorts_the_wrong_way() -> None:
    made = [(asked.content, reply.content) for asked, reply in demonstrations(4000, 0)]
    wrong = sum(reply != "".join(sorted(asked)) for asked, reply in made)
    assert wrong / len(made) == pytest.approx(0.6, abs=0.03)
    for asked, reply in made:
        assert reply in ("".join(sorted(asked)), "".join(sorted(asked, reverse=True)))


def test_demonstrations_come_from_the_train_split() -> None:
    made = list(demonstrations(500, 0))
    assert len(made) == 500
    assert {split_of(asked.content) for asked, _ in made} == {"train"}


def test_the_demonstrations_are_tasks_too_with_the_reply_in_a_column() -> None:
    told = [(task.messages[0].content, task.row["response"]) for task in demonstrated(rows=500, seed=3)]
    assert told == [(asked.content, reply.content) for asked, reply in demonstrations(500, 3)]


GOLDEN_QUESTIONS = ["01154", "24154", "11142", "56441"]
