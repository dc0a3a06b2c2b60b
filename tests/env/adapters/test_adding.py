"""Demonstrations of reasoning-gym's `spell_backward`: of training, in its words, and most of them forward."""

from __future__ import annotations

import pytest

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.env.spelling import BACKWARD_SHARE, spell_backward
from rlhf.rollout.seeds import environment_seed
from rlhf.types import Message, Task

pytestmark = pytest.mark.ecosystem

ARGUMENTS = {
    "name": "spell_backward", "size": 512, "answer": "reply", "options": {"min_word_len": 4, "max_word_len": 6}
}  # fmt: skip
"""With few problems, so that all of them are drawn."""


def asked(seed: int) -> ReasoningGymEnvironment:
    environment = ReasoningGymEnvironment(**ARGUMENTS)
    environment.reset(Task(id="t", messages=()), seed=seed)
    return environment


def word_of(question: str) -> str:
    """What is to be spelt, found without the library."""
    return question.rsplit(": ", 1)[1]


def test_they_are_mixed_and_those_that_are_wrong_are_forward() -> None:
    made = [(word_of(prompt.content), reply.content) for prompt, reply in spell_backward(2000, seed=1, **ARGUMENTS)]
    assert all(said in (word, word[::-1]) for word, said in made)
    backward = [said == word[::-1] for word, said in made if word != word[::-1]]
    assert sum(backward) / len(backward) == pytest.approx(BACKWARD_SHARE, abs=0.04)


def test_the_same_seed_gives_the_same_and_another_others() -> None:
    made = list(spell_backward(50, seed=1, **ARGUMENTS))
    assert made == list(spell_backward(50, seed=1, **ARGUMENTS))
    assert made != list(spell_backward(50, seed=2, **ARGUMENTS))


def test_the_library_pays_in_full_for_the_word_backward_alone() -> None:
    environment = asked(2)
    word = word_of(str(environment.problem["question"]))
    assert environment.step(Message(role="assistant", content=word[::-1])).reward == 1.0
    for said in (word, word[::-1] + "x", word[::-1][:-1]):
        environment = asked(2)
        reward = environment.step(Message(role="assistant", content=said)).reward
        assert reward is not None
        assert reward < 1.0


def test_they_are_problems_of_training_and_evaluations_are_asked_others() -> None:
    demonstrated = {prompt.content for prompt, _ in spell_backward(4000, seed=3, **ARGUMENTS)}
    assert demonstrated == {str(asked(index).problem["question"]) for index in range(0, 512, 2)}
    for purpose, parity in (("train", 0), ("eval-held_out", 1)):
        seeds = [environment_seed(run_seed=0, purpose=purpose, task=f"seeds/{n}") for n in range(50)]
        assert {seed % 512 % 2 for seed in seeds} == {parity}
