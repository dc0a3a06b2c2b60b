"""Demonstrations of the calculator: two habits, and whoever asks the tool is right."""

from __future__ import annotations

from recipes.tasks.calculator import demonstrations
from rlhf.env.tools import calculated


def test_demonstrations_are_mixed_and_those_with_the_tool_are_right() -> None:
    made = list(demonstrations(400, seed=1))
    with_tool = [one for one in made if len(one) == 4]
    assert 0.25 < len(with_tool) / len(made) < 0.45
    for question, _, answer, reply in with_tool:
        assert answer.content == reply.content == calculated(question.content)
    assert made == list(demonstrations(400, seed=1))
