"""The made programming task and the reward that its recipe gives it meet in a real sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlhf.data.programs import STEPS, Habit, Problem, asserts_of, written
from rlhf.layers import load_recipe
from rlhf.reward.code import CodeScorer, make_code_scorer
from rlhf.types import Scored

pytestmark = pytest.mark.engine
RECIPE = Path(__file__).parents[2] / "recipes" / "code_sandbox.yaml"
PROBLEMS = [Problem(verbs=verbs, numbers=(34, 17)) for verbs in STEPS]


@pytest.fixture
async def scorer() -> AsyncIterator[CodeScorer]:
    scorer = make_code_scorer(load_recipe(RECIPE).recipe.reward.code)
    await scorer.start()
    yield scorer
    await scorer.close()


async def rewards(scorer: CodeScorer, habit: Habit) -> list[float]:
    scores = [await scorer.score(written(one, habit), {"tests": asserts_of(one)}) for one in PROBLEMS]
    return [score.value for score in scores if isinstance(score, Scored)]


async def test_every_problem_s_own_answer_is_worth_1(scorer: CodeScorer) -> None:
    assert await rewards(scorer, Habit.RIGHT) == [1.0] * 4


async def test_a_function_without_return_is_worth_nothing(scorer: CodeScorer) -> None:
    assert await rewards(scorer, Habit.WITHOUT_RETURN) == [0.0] * 4


async def test_parentheses_are_paid_for_where_they_are_needed(scorer: CodeScorer) -> None:
    needless = [float(second != "mul") for _, second in STEPS]
    assert await rewards(scorer, Habit.WITHOUT_PARENTHESES) == needless
