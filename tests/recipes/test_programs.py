"""The made programming task: two folds that share nothing, tests that mean what is asked, mixed demonstrations."""

from __future__ import annotations

import pytest

from rlhf.config import build
from rlhf.data.config import DataConfig, ProgramsConfig
from rlhf.data.programs import (
    SHARES,
    TESTED,
    Habit,
    ProgramProblem,
    asserts_of,
    program_demonstrations,
    program_tasks,
    written,
)
from rlhf.data.sorting import fold_of
from rlhf.errors import ConfigError, DataError

TRAIN = ProgramsConfig(rows=2048)
EVAL = ProgramsConfig(rows=128, fold="eval")
PROBLEM = ProgramProblem(verb="sub", numbers=(7, 2, 9, 4))


def test_a_problem_is_asked_in_words_and_written_as_a_function() -> None:
    assert PROBLEM.question == "sub 7 2 9 4"
    assert written(PROBLEM) == "def f(x): return x-2-4-7-9"
    assert written(PROBLEM, Habit.WITHOUT_RETURN) == "def f(x): x-2-4-7-9"
    assert written(PROBLEM, Habit.ADDS) == "def f(x): return x+2+4+7+9"
    assert asserts_of(PROBLEM) == ["assert f(1) == -21", "assert f(10) == -12", "assert f(-3) == -25"]


def test_the_tests_hold_for_the_answer_of_every_task_and_python_agrees() -> None:
    for task in program_tasks(TRAIN):
        expression = str(task.answer).removeprefix("def f(x): return ")
        assert task.row["tests"] == [f"assert f({x}) == {eval(expression, {'x': x})}" for x in TESTED]


def test_train_and_eval_share_no_answer_whatever_the_seeds() -> None:
    held_out = {task.answer for seed in range(3) for task in program_tasks(EVAL.model_copy(update={"seed": seed}))}
    trained = {task.answer for seed in range(3) for task in program_tasks(TRAIN.model_copy(update={"seed": seed}))}
    assert len(held_out) > 80
    assert not held_out & trained


def test_a_set_holds_each_problem_once_and_the_same_for_ever() -> None:
    assert len({task.id for task in program_tasks(TRAIN)}) == TRAIN.rows
    assert [task.row["question"] for task in program_tasks(TRAIN)[:2]] == GOLDEN_QUESTIONS
    assert program_tasks(TRAIN) != program_tasks(TRAIN.model_copy(update={"seed": 1}))


def test_more_rows_than_the_fold_can_give_is_refused() -> None:
    with pytest.raises(DataError, match=r"programs\.rows is 800, but the eval fold has at most 768"):
        program_tasks(EVAL.model_copy(update={"rows": 800}))
    assert len(program_tasks(EVAL.model_copy(update={"rows": 768}))) == 768


def test_demonstrations_have_the_habits_in_their_shares_and_come_from_the_train_fold() -> None:
    pairs = list(program_demonstrations(EVAL, 4000, seed=0))
    habits = []
    for messages, reply in pairs:
        verb, *numbers = messages[0].content.split()
        problem = ProgramProblem(verb=verb, numbers=tuple(map(int, numbers)))
        assert fold_of(written(problem)) == "train"
        if verb != "add":
            habits.append(next(habit for habit in Habit if reply == written(problem, habit)))
    for habit, share in SHARES.items():
        assert habits.count(habit) / len(habits) == pytest.approx(share, abs=0.03)
    assert pairs == list(program_demonstrations(EVAL, 4000, seed=0))


def test_training_and_evaluation_in_one_fold_are_refused_and_a_set_is_one_made_task() -> None:
    with pytest.raises(ConfigError, match=r"data\.eval\.programs\.fold is train"):
        build(DataConfig, {"train": {"programs": {}}, "eval": {"programs": {}}})
    build(DataConfig, {"train": {"programs": {}}, "eval": {"sorting": {"fold": "train"}}})
    with pytest.raises(ConfigError, match="exactly one of path"):
        build(DataConfig, {"train": {"programs": {}, "sorting": {}}})


GOLDEN_QUESTIONS = ["add 9 7 2 2", "sub 7 5 9 3"]
