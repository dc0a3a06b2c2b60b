"""Programming: two splits that share nothing, tests that mean what is asked, mixed demonstrations."""

from __future__ import annotations

import pytest

from recipes.tasks.programs import SHARES, TESTED, Habit, ProgramProblem, asserts_of, demonstrations, tasks, written
from recipes.tasks.sorting import split_of

TRAIN = tasks(rows=2048)
PROBLEM = ProgramProblem(verb="sub", numbers=(7, 2, 9, 4))


def test_a_problem_is_asked_in_words_and_written_as_a_function() -> None:
    assert PROBLEM.question == "sub 7 2 9 4"
    assert written(PROBLEM) == "def f(x): return x-2-4-7-9"
    assert written(PROBLEM, Habit.WITHOUT_RETURN) == "def f(x): x-2-4-7-9"
    assert written(PROBLEM, Habit.ADDS) == "def f(x): return x+2+4+7+9"
    assert asserts_of(PROBLEM) == ["assert f(1) == -21", "assert f(10) == -12", "assert f(-3) == -25"]


def test_the_tests_hold_for_the_answer_of_every_task_and_python_agrees() -> None:
    for task in TRAIN:
        expression = str(task.answer).removeprefix("def f(x): return ")
        assert task.row["tests"] == [f"assert f({x}) == {eval(expression, {'x': x})}" for x in TESTED]


def test_train_and_eval_share_no_answer_whatever_the_seeds() -> None:
    held_out = {task.answer for seed in range(3) for task in tasks(rows=128, split="eval", seed=seed)}
    trained = {task.answer for seed in range(3) for task in tasks(rows=2048, seed=seed)}
    assert len(held_out) > 80
    assert not held_out & trained


def test_a_set_holds_each_problem_once_and_the_same_for_ever() -> None:
    assert len({task.id for task in TRAIN}) == 2048
    assert [task.row["question"] for task in TRAIN[:2]] == GOLDEN_QUESTIONS
    assert tasks(rows=2048, seed=1) != TRAIN


def test_demonstrations_have_the_habits_in_their_shares_and_come_from_the_train_split() -> None:
    made = list(demonstrations(4000, seed=0))
    habits = []
    for asked, reply in made:
        verb, *numbers = asked.content.split()
        problem = ProgramProblem(verb=verb, numbers=tuple(map(int, numbers)))
        assert split_of(written(problem)) == "train"
        if verb != "add":
            habits.append(next(habit for habit in Habit if reply.content == written(problem, habit)))
    for habit, share in SHARES.items():
        assert habits.count(habit) / len(habits) == pytest.approx(share, abs=0.03)
    assert made == list(demonstrations(4000, seed=0))


GOLDEN_QUESTIONS = ["add 9 7 2 2", "sub 7 5 9 3"]
