"""A task of programming: write a function in Python, which unit tests then run.

For instance `mul 7 2 9 4` → `def f(x): return x*2*4*7*9`, which multiplies `x` by each of the numbers. The tests are in
the task's row, for `reward.kind: code`, and accept any function that does it. The answer is the one in the form of the
demonstrations, which put the numbers in order: a tiny model learns that sooner than to keep their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from recipes.tasks.sorting import HABITS, PROBLEMS, Split, most_rows, split_of, uniforms
from rlhf.errors import DataError
from rlhf.types import Message, Task

SIGNS = {"add": "+", "sub": "-", "mul": "*"}
VERBS = tuple(SIGNS)
NUMBERS = range(2, 10)
COUNT = 4
"""Numbers of a problem."""
SPACE = len(VERBS) * len(NUMBERS) ** COUNT
TESTED = (1, 10, -3)
"""Arguments with which the tests call the function."""


class Habit(Enum):
    """A way of writing the function."""

    RIGHT = "right"
    WITHOUT_RETURN = "without return"
    ADDS = "adds whatever is asked"


SHARES = {Habit.WITHOUT_RETURN: 0.5, Habit.ADDS: 0.2, Habit.RIGHT: 0.3}
"""Shares of the demonstrations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramProblem:
    """The operation of `f(x)` on `x` with each of the numbers in turn."""

    verb: str
    numbers: tuple[int, ...]

    @property
    def question(self) -> str:
        return " ".join((self.verb, *map(str, self.numbers)))


def tasks(*, rows: int = 4096, split: Split = "train", seed: int = 0) -> list[Task]:
    """`rows` different problems of one split, drawn by `seed`. Raises `DataError` where it has hardly as many."""
    most = most_rows(SPACE, split)
    if rows > most:
        raise DataError(f"rows is {rows}, but the {split} split has at most {most}; ask for fewer")
    drawn: dict[ProgramProblem, None] = {}
    for problem in _problems(split, seed):
        if len(drawn) >= rows:
            break
        drawn[problem] = None
    return [_task(problem, split) for problem in drawn]


def demonstrations(count: int, seed: int) -> Iterator[tuple[Message, ...]]:
    """`count` conversations for the warm-up, from the train split only.

    They are mixed on purpose: half of the functions lack their `return`, others always add. The
    warmed-up model writes the right program about three times in eight.
    """
    problems = _problems("train", seed)
    for _, problem, draw in zip(range(count), problems, uniforms(seed, HABITS), strict=False):
        reply = written(problem, _habit(draw))
        yield Message(role="user", content=problem.question), Message(role="assistant", content=reply)


def written(problem: ProgramProblem, habit: Habit = Habit.RIGHT) -> str:
    """Return the function as written with this habit."""
    sign = SIGNS["add" if habit is Habit.ADDS else problem.verb]
    value = sign.join(("x", *map(str, sorted(problem.numbers))))
    return f"def f(x): {'' if habit is Habit.WITHOUT_RETURN else 'return '}{value}"


def asserts_of(problem: ProgramProblem) -> list[str]:
    """Return asserts about `f`, computed without running a program."""
    return [f"assert f({x}) == {_after(problem, x)}" for x in TESTED]


def _after(problem: ProgramProblem, value: int) -> int:
    for number in problem.numbers:
        match problem.verb:
            case "add":
                value += number
            case "sub":
                value -= number
            case "mul":
                value *= number
    return value


def _task(problem: ProgramProblem, split: Split) -> Task:
    answer = written(problem)
    return Task(
        id=f"programs/{split}/{problem.question}",
        messages=(Message(role="user", content=problem.question),),
        answer=answer,
        row={"question": problem.question, "answer": answer, "tests": asserts_of(problem)},
    )


def _habit(draw: float) -> Habit:
    """Return the habit at `draw` of [0, 1)."""
    if draw < SHARES[Habit.WITHOUT_RETURN]:
        return Habit.WITHOUT_RETURN
    return Habit.RIGHT if draw >= 1 - SHARES[Habit.RIGHT] else Habit.ADDS


def _problems(split: Split, seed: int) -> Iterator[ProgramProblem]:
    """Problems of one split, uniformly and for ever; one may come again. The answer decides the split: the same numbers
    in another order are in the same."""
    for draw in uniforms(seed, PROBLEMS):
        rest, verb = divmod(int(draw * SPACE), len(VERBS))
        numbers = []
        for _ in range(COUNT):
            rest, one = divmod(rest, len(NUMBERS))
            numbers.append(NUMBERS[one])
        problem = ProgramProblem(verb=VERBS[verb], numbers=tuple(numbers))
        if split_of(written(problem)) == split:
            yield problem
