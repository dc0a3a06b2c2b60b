"""The small programming task and the reward that its recipe gives it meet in a real sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from recipes.tasks.programs import VERBS, Habit, ProgramProblem, asserts_of, written
from rlhf.recipe.loading import load_recipe
from rlhf.reward.code.scoring import CodeScorer
from rlhf.types import Scored

pytestmark = pytest.mark.engine
RECIPE = Path(__file__).parents[2] / "recipes" / "code_sandbox.yaml"
PROBLEMS = [ProgramProblem(verb=verb, numbers=(7, 2, 9, 4)) for verb in VERBS]


@pytest.fixture
async def scorer() -> AsyncIterator[CodeScorer]:
    scorer = CodeScorer(load_recipe(RECIPE).recipe.reward.code)
    await scorer.start()
    yield scorer
    await scorer.close()


async def rewards(scorer: CodeScorer, *programs: str) -> list[float]:
    """Of one program for each of the problems."""
    asked = zip(programs, PROBLEMS, strict=True)
    scores = [await scorer.score(program, {"tests": asserts_of(problem)}) for program, problem in asked]
    return [score.value for score in scores if isinstance(score, Scored)]


async def test_every_problem_s_own_answer_is_worth_1_and_so_is_another_right_one(scorer: CodeScorer) -> None:
    assert await rewards(scorer, *map(written, PROBLEMS)) == [1.0, 1.0, 1.0]
    others = (
        "def f(x): return x+22",
        "def f(x):\n    for n in (7, 2, 9, 4): x -= n\n    return x",
        "f = lambda x: x*504",
    )
    assert await rewards(scorer, *others) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("habit", "worth"), [(Habit.WITHOUT_RETURN, [0.0, 0.0, 0.0]), (Habit.ADDS, [1.0, 0.0, 0.0])])
async def test_a_wrong_habit_is_worth_what_it_gets_right(scorer: CodeScorer, habit: Habit, worth: list[float]) -> None:
    assert await rewards(scorer, *(written(problem, habit) for problem in PROBLEMS)) == worth
