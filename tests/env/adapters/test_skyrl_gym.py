"""SkyRL-gym's environments ask the task's question, take the turns and give the reward."""

from __future__ import annotations

import pytest

from rlhf.env.adapters.skyrl_gym import SkyrlGymEnvironment
from rlhf.errors import ConfigError
from rlhf.types import Message, Task

pytestmark = pytest.mark.ecosystem

QUESTION = Task(id="0", messages=(Message(role="user", content="2 + 2?"),), answer="4", row={"max_turns": 2})


def test_one_turn_is_scored_against_the_task_s_answer() -> None:
    for reply, reward in (("#### 4", 1.0), ("#### 5", 0.0), ("four", 0.0)):
        game = SkyrlGymEnvironment("gsm8k")
        assert game.reset(QUESTION, seed=0).messages == QUESTION.messages
        end = game.step(Message(role="assistant", content=reply))
        assert (end.reward, end.terminated, end.truncated, end.messages) == (reward, True, False, ())
        game.close()


def test_several_turns_are_theirs_with_a_reward_each() -> None:
    game = SkyrlGymEnvironment("gsm8k_multi_turn")
    game.reset(QUESTION, seed=0)
    wrong = game.step(Message(role="assistant", content="#### 5"))
    assert (wrong.reward, wrong.done, wrong.messages[0].role) == (0.1, False, "user")
    right = game.step(Message(role="assistant", content="#### 4"))
    assert (right.reward, right.terminated) == (1.0, True)


def test_one_that_is_never_reset_can_be_closed() -> None:
    SkyrlGymEnvironment("gsm8k").close()


def test_an_environment_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="skyrl-gym has no environment chess; it has: aime"):
        SkyrlGymEnvironment("chess")
