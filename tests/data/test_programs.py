"""The made programming task: two folds that share nothing, tests that mean what is asked, mixed demonstrations."""

from __future__ import annotations

import pytest

from rlhf.config import build
from rlhf.data.config import DataConfig, ProgramsConfig
from rlhf.data.programs import SHARES, STEPS, TESTED, Habit, Problem, asserts_of, demonstrations, tasks, written
from rlhf.data.sorting import fold_of
from rlhf.errors import ConfigError, DataError

TRAIN = ProgramsConfig(rows=2048)
EVAL = ProgramsConfig(rows=128, fold="eval")
PROBLEM = Problem(verbs=("add", "mul"), numbers=(34, 17))


def test_a_problem_is_asked_in_words_and_written_as_a_function() -> None:
    assert PROBLEM.question == "add 34, then mul 17"
    assert written(PROBLEM) == "def f(x): return (x+34)*17"
    assert written(PROBLEM, Habit.WITHOUT_RETURN) == "def f(x): (x+34)*17"
    assert written(PROBLEM, Habit.WITHOUT_PARENTHESES) == "def f(x): return x+34*17"
    assert asserts_of(PROBLEM) == ["assert f(1) == 595", "assert f(10) == 748", "assert f(-3) == 527"]


def test_the_tests_hold_for_the_answer_of_every_task_and_python_agrees() -> None:
    for task in tasks(TRAIN):
        expression = str(task.answer).removeprefix("def f(x): return ")
        expected = [f"assert f({x}) == {eval(expression, {'x': x})}" for x in TESTED]
        assert task.row["tests"] == expected


def test_parentheses_are_needed_where_times_comes_second_and_nowhere_else() -> None:
    for verbs in STEPS:
        problem = Problem(verbs=verbs, numbers=(10, 99))
        bare = written(problem, Habit.WITHOUT_PARENTHESES).removeprefix("def f(x): return ")
        came_to = [f"assert f({x}) == {eval(bare, {'x': x})}" for x in TESTED]
        assert (came_to == asserts_of(problem)) == (verbs[1] != "mul")


def test_train_and_eval_share_no_problem_whatever_the_seeds() -> None:
    held_out = {task.id.split("/")[2] for seed in range(3) for task in tasks(EVAL.model_copy(update={"seed": seed}))}
    trained = {task.id.split("/")[2] for seed in range(3) for task in tasks(TRAIN.model_copy(update={"seed": seed}))}
    assert len(held_out) > 300
    assert not held_out & trained


def test_a_set_holds_each_problem_once_and_the_same_for_ever() -> None:
    assert len({task.id for task in tasks(TRAIN)}) == TRAIN.rows
    assert [task.row["question"] for task in tasks(TRAIN)[:2]] == ["add 14, then mul 24", "add 96, then mul 96"]
    assert tasks(TRAIN) != tasks(TRAIN.model_copy(update={"seed": 1}))


def test_more_rows_than_the_fold_can_give_is_refused() -> None:
    with pytest.raises(DataError, match=r"programs\.rows is 3000, but the eval fold has at most 2025"):
        tasks(EVAL.model_copy(update={"rows": 3000}))
    assert len(tasks(EVAL.model_copy(update={"rows": 2025}))) == 2025


def test_demonstrations_have_the_habits_in_their_shares_and_come_from_the_train_fold() -> None:
    pairs = list(demonstrations(EVAL, 4000, seed=0))
    assert {fold_of(messages[0].content) for messages, _ in pairs} == {"train"}
    replies = [reply for _, reply in pairs]
    without_return = sum("return" not in reply for reply in replies) / len(replies)
    bare = sum("(x)" in reply and reply.count("(") == 1 for reply in replies) / len(replies)
    assert without_return == pytest.approx(SHARES[Habit.WITHOUT_RETURN], abs=0.03)
    assert bare == pytest.approx(SHARES[Habit.WITHOUT_PARENTHESES], abs=0.03)
    assert replies == [reply for _, reply in demonstrations(EVAL, 4000, seed=0)]


def test_the_same_fold_for_training_and_evaluation_is_refused_and_two_made_tasks_are_not_one() -> None:
    with pytest.raises(ConfigError, match=r"data\.eval\.programs\.fold is train"):
        build(DataConfig, {"train": {"programs": {}}, "eval": {"programs": {}}})
    build(DataConfig, {"train": {"programs": {}}, "eval": {"sorting": {"fold": "train"}}})
    with pytest.raises(ConfigError, match="exactly one of path"):
        build(DataConfig, {"train": {"programs": {}, "sorting": {}}})
