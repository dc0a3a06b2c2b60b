"""Demonstrations of reasoning-gym's `spell_backward`: of training, in the environment's words, some of them right."""

from __future__ import annotations

import pytest

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.env.spelling import RIGHT_SHARE, spell_backward
from rlhf.rollout.seeds import environment_seed
from rlhf.types import Message, Task

pytestmark = pytest.mark.ecosystem

ARGUMENTS = {
    "name": "spell_backward", "size": 512, "answer": "reply", "options": {"min_word_len": 4, "max_word_len": 6}
}  # fmt: skip
"""With few problems, so that all of them are drawn."""


def asked(seed: int, size: int = 512) -> ReasoningGymEnvironment:
    environment = ReasoningGymEnvironment(**ARGUMENTS | {"size": size})
    environment.reset(Task(id="t", messages=()), seed=seed)
    return environment


def question(problem: int) -> str:
    return str(asked(problem).problem["question"])


def test_they_are_mixed_and_the_library_pays_for_those_that_are_backward() -> None:
    made = list(spell_backward(2000, seed=1, **ARGUMENTS))
    right = 0
    for prompt, reply in made:
        word = prompt.content.rpartition(" ")[2]
        assert reply.content in (word[::-1], word[-2::-1])
        right += reply.content == word[::-1]
    assert right / len(made) == pytest.approx(RIGHT_SHARE, abs=0.04)
    assert made == list(spell_backward(2000, seed=1, **ARGUMENTS))
    assert made[:50] != list(spell_backward(50, seed=2, **ARGUMENTS))


def test_an_answer_without_the_last_letter_earns_little() -> None:
    environment = asked(2)
    word = environment.problem["metadata"]["word"]
    assert environment.step(Message(role="assistant", content=word[::-1])).reward == 1.0
    assert environment.step(Message(role="assistant", content=word[-2::-1])).reward < 0.5


def test_they_are_problems_of_training_and_evaluations_are_asked_others() -> None:
    demonstrated = {prompt.content for prompt, _ in spell_backward(4000, seed=3, **ARGUMENTS)}
    trained = {question(index) for index in range(0, 512, 2)}
    assert demonstrated == trained
    for purpose, parity in (("train", 0), ("eval", 1)):
        seeds = [environment_seed(run_seed=0, purpose=purpose, task=f"seeds/{n}") for n in range(50)]
        assert {seed % 512 % 2 for seed in seeds} == {parity}
