"""Demonstrations of reasoning-gym's `chain_sum`: of training, in its words, and most of them add whatever is asked."""

from __future__ import annotations

import pytest

from recipes.tasks.adding import RIGHT_SHARE, added, chain_sum
from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.rollout.seeds import environment_seed
from rlhf.types import Message, Task

pytestmark = pytest.mark.ecosystem

ARGUMENTS = {
    "name": "chain_sum",
    "size": 512,
    "answer": "reply",
    "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
"""With few problems, so that all of them are drawn."""


def asked(seed: int) -> ReasoningGymEnvironment:
    environment = ReasoningGymEnvironment(**ARGUMENTS)
    environment.reset(Task(id="t", messages=()), seed=seed)
    return environment


def worked_out(question: str) -> int:
    """The answer, found without the library."""
    left, sign, right = question.rsplit(": ", 1)[1].split()[:3]
    return int(left) + int(right) if sign == "+" else int(left) - int(right)


def test_they_are_mixed_and_those_that_are_wrong_add() -> None:
    made = [(prompt.content, int(reply.content)) for prompt, reply in chain_sum(2000, seed=1, **ARGUMENTS)]
    assert all(said in (worked_out(question), added(question)) for question, said in made)
    telling = [(question, said) for question, said in made if worked_out(question) != added(question)]
    right = sum(said == worked_out(question) for question, said in telling)
    assert len(telling) > 500
    assert right / len(telling) == pytest.approx(RIGHT_SHARE, abs=0.06)


def test_the_library_pays_for_the_right_number_alone() -> None:
    environment = asked(2)
    right = worked_out(str(environment.problem["question"]))
    for said, paid in ((right, True), (right + 1, False), (right - 10, False)):
        reward = asked(2).step(Message(role="assistant", content=str(said))).reward
        assert reward is not None
        assert (reward == 1.0) is paid


def test_they_are_problems_of_training_and_evaluations_are_asked_others() -> None:
    demonstrated = {prompt.content for prompt, _ in chain_sum(4000, seed=3, **ARGUMENTS)}
    assert demonstrated == {str(asked(index).problem["question"]) for index in range(0, 512, 2)}
    for purpose, parity in (("train", 0), ("eval-held_out", 1)):
        seeds = [environment_seed(run_seed=0, purpose=purpose, task=f"seeds/{n}") for n in range(50)]
        assert {seed % 512 % 2 for seed in seeds} == {parity}
