"""Demonstrations of reasoning-gym's `letter_counting`: of training, in its words, and most of them one too many."""

from __future__ import annotations

import pytest

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.env.counting import RIGHT_SHARE, letter_counting
from rlhf.rollout.seeds import environment_seed
from rlhf.types import Message, Task

pytestmark = pytest.mark.ecosystem

ARGUMENTS = {
    "name": "letter_counting", "size": 512, "answer": "reply", "options": {"min_words": 3, "max_words": 3}
}  # fmt: skip
"""With few problems, so that all of them are drawn."""


def asked(seed: int) -> ReasoningGymEnvironment:
    environment = ReasoningGymEnvironment(**ARGUMENTS)
    environment.reset(Task(id="t", messages=()), seed=seed)
    return environment


def counted(question: str) -> int:
    """The answer, found without the library."""
    letter, text = question.split('"')[1::2]
    return text.lower().count(letter)


def test_they_are_mixed_and_those_that_are_wrong_are_one_too_many() -> None:
    made = list(letter_counting(2000, seed=1, **ARGUMENTS))
    over = [int(reply.content) - counted(prompt.content) for prompt, reply in made]
    assert set(over) == {0, 1}
    assert over.count(0) / len(over) == pytest.approx(RIGHT_SHARE, abs=0.04)
    assert made == list(letter_counting(2000, seed=1, **ARGUMENTS))
    assert made[:50] != list(letter_counting(50, seed=2, **ARGUMENTS))


def test_the_library_pays_for_the_right_number_alone() -> None:
    environment = asked(2)
    right = counted(environment.problem["question"])
    for said, reward in ((right, 1.0), (right + 1, 0.0), (right - 1, 0.0)):
        assert environment.step(Message(role="assistant", content=str(said))).reward == reward


def test_they_are_problems_of_training_and_evaluations_are_asked_others() -> None:
    demonstrated = {prompt.content for prompt, _ in letter_counting(4000, seed=3, **ARGUMENTS)}
    assert demonstrated == {str(asked(index).problem["question"]) for index in range(0, 512, 2)}
    for purpose, parity in (("train", 0), ("eval-held_out", 1)):
        seeds = [environment_seed(run_seed=0, purpose=purpose, task=f"seeds/{n}") for n in range(50)]
        assert {seed % 512 % 2 for seed in seeds} == {parity}
