"""A made task of programming: write a function of two steps in Python, which unit tests then run.

For instance `add 34, then mul 17` → `def f(x): return (x+34)*17`. All questions have one length, because a tiny model
learns sooner to copy a number from its place than from between two words. The tests are in the task's row, for
`reward.kind: code`; the answer is the program in the form that the right ones among the demonstrations have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rlhf.data.config import ProgramsConfig
from rlhf.data.sorting import EVAL_SHARE, HABITS, PROBLEMS, Fold, fold_of, uniforms
from rlhf.errors import DataError
from rlhf.types import Message, Task

SIGNS = {"add": "+", "sub": "-", "mul": "*"}
STEPS = (("add", "mul"), ("sub", "mul"), ("mul", "add"), ("mul", "sub"))
"""In each of them the two orders come to different numbers."""
SMALLEST, LARGEST = 10, 99
TESTED = (1, 10, -3)
"""What the function is called with."""


class Habit(Enum):
    """How somebody writes the function."""

    RIGHT = "right"
    WITHOUT_RETURN = "without return"
    WITHOUT_PARENTHESES = "without parentheses"


SHARES = {Habit.WITHOUT_RETURN: 0.5, Habit.WITHOUT_PARENTHESES: 0.2, Habit.RIGHT: 0.3}
"""Shares of the demonstrations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What `f(x)` is to do with `x`: a verb and its number, then another."""

    verbs: tuple[str, str]
    numbers: tuple[int, int]

    @property
    def question(self) -> str:
        (first, second), (one, other) = self.verbs, self.numbers
        return f"{first} {one}, then {second} {other}"


def tasks(config: ProgramsConfig) -> list[Task]:
    """`config.rows` different problems of one fold. Raises `DataError` when the fold has not clearly more than that."""
    share = EVAL_SHARE if config.fold == "eval" else 1 - EVAL_SHARE
    most = int(_space() * share / 2)
    if config.rows > most:
        raise DataError(f"programs.rows is {config.rows}, but the {config.fold} fold has at most {most}; ask for fewer")
    drawn: dict[Problem, None] = {}
    for problem in _problems(config.fold, config.seed):
        drawn[problem] = None
        if len(drawn) == config.rows:
            break
    return [_task(problem, config.fold) for problem in drawn]


def demonstrations(config: ProgramsConfig, count: int, seed: int) -> Iterator[tuple[tuple[Message, ...], str]]:
    """`count` pairs of messages and reply for the warm-up, from the train fold only.

    They are mixed on purpose: half of the functions lack their `return`, others their parentheses, which half of the
    problems need. The warmed-up model writes the right program about two times in five.
    """
    problems = _problems("train", seed)
    for _, problem, draw in zip(range(count), problems, uniforms(seed, HABITS), strict=False):
        yield (Message(role="user", content=problem.question),), written(problem, _habit(draw))


def written(problem: Problem, habit: Habit = Habit.RIGHT) -> str:
    """The function as somebody of that habit writes it."""
    (first, second), (one, other) = problem.verbs, problem.numbers
    inner = f"x{SIGNS[first]}{one}"
    value = f"{inner if habit is Habit.WITHOUT_PARENTHESES else f'({inner})'}{SIGNS[second]}{other}"
    return f"def f(x): {'' if habit is Habit.WITHOUT_RETURN else 'return '}{value}"


def asserts_of(problem: Problem) -> list[str]:
    """What must hold of `f`, worked out without running any program."""
    return [f"assert f({x}) == {_after(problem, x)}" for x in TESTED]


def _after(problem: Problem, value: int) -> int:
    for verb, number in zip(problem.verbs, problem.numbers, strict=True):
        match verb:
            case "add":
                value += number
            case "sub":
                value -= number
            case "mul":
                value *= number
    return value


def _task(problem: Problem, fold: Fold) -> Task:
    answer = written(problem)
    return Task(
        id=f"programs/{fold}/{problem.question}",
        messages=(Message(role="user", content=problem.question),),
        answer=answer,
        row={"question": problem.question, "answer": answer, "tests": asserts_of(problem)},
    )


def _habit(draw: float) -> Habit:
    """The habit at `draw` of [0, 1)."""
    if draw < SHARES[Habit.WITHOUT_RETURN]:
        return Habit.WITHOUT_RETURN
    return Habit.RIGHT if draw >= 1 - SHARES[Habit.RIGHT] else Habit.WITHOUT_PARENTHESES


def _space() -> int:
    return len(STEPS) * (LARGEST - SMALLEST + 1) ** 2


def _problems(fold: Fold, seed: int) -> Iterator[Problem]:
    """Problems of one fold, uniformly and for ever; one may come again."""
    numbers = LARGEST - SMALLEST + 1
    for draw in uniforms(seed, PROBLEMS):
        rest, other = divmod(int(draw * _space()), numbers)
        verbs, one = divmod(rest, numbers)
        problem = Problem(verbs=STEPS[verbs], numbers=(SMALLEST + one, SMALLEST + other))
        if fold_of(problem.question) == fold:
            yield problem
