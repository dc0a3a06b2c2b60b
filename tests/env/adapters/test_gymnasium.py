"""Gymnasium's environments are played as text, and how an episode ends is what Gymnasium says."""

from __future__ import annotations

import pytest

from rlhf.env.adapters.gymnasium import GymnasiumEnvironment
from rlhf.errors import ConfigError
from rlhf.types import Message, Observation, Task

pytestmark = pytest.mark.ecosystem

NOTHING = Task(id="0", messages=())
CARTPOLE = [(-2.4, 2.4), (-2.5, 2.5), (-0.21, 0.21), (-2.5, 2.5)]
LAKE = {"is_slippery": False}


def said(observation: Observation) -> str:
    return "\n".join(message.content for message in observation.messages)


def do(environment: GymnasiumEnvironment, *replies: str) -> Observation:
    """Return the observation after the last of the replies."""
    for reply in replies:
        observation = environment.step(Message(role="assistant", content=reply))
    return observation


def lean(digits: str) -> str:
    """Return a balance that sees no more than the four digits: push to the side to which the pole leans or falls."""
    position, speed, angle, fall = (int(digit) - 4.5 for digit in digits)
    return str(int(3 * angle + 2 * fall + 0.1 * position + 0.2 * speed > 0))


def test_the_optimal_path_over_the_frozen_lake_terminates_with_its_reward() -> None:
    lake = GymnasiumEnvironment("FrozenLake-v1", options=LAKE, actions=["left", "down", "right", "up"])
    assert said(lake.reset(NOTHING, seed=0)) == "0"
    on_the_way = do(lake, "down", "down", "right", "right", "down")
    assert (said(on_the_way), on_the_way.reward, on_the_way.done) == ("14", 0.0, False)
    at_the_goal = do(lake, "I am nearly there, so: **Right**.")
    assert (at_the_goal.reward, at_the_goal.terminated, at_the_goal.truncated) == (1.0, True, False)


def test_a_hole_in_the_lake_terminates_without_reward() -> None:
    lake = GymnasiumEnvironment("FrozenLake-v1", options=LAKE)
    lake.reset(NOTHING, seed=0)
    fallen = do(lake, "1", "2")
    assert (said(fallen), fallen.reward, fallen.terminated) == ("5", 0.0, True)


def test_the_fall_of_the_pole_terminates() -> None:
    pole = GymnasiumEnvironment("CartPole-v1", bins=CARTPOLE)
    observation = pole.reset(NOTHING, seed=1)
    for _ in range(30):
        observation = do(pole, "1")
        if observation.done:
            break
    assert observation.terminated
    assert not observation.truncated


def test_the_time_limit_truncates_and_shows_the_state_that_a_critic_goes_on_from() -> None:
    pole = GymnasiumEnvironment("CartPole-v1", bins=CARTPOLE, options={"max_episode_steps": 20})
    observation = pole.reset(NOTHING, seed=1)
    for _ in range(20):
        assert not observation.done
        observation = do(pole, lean(said(observation)))
    assert (observation.terminated, observation.truncated) == (False, True)
    assert len(said(observation)) == 4


def test_four_digits_are_enough_to_balance_the_pole() -> None:
    steps = 0
    for seed in range(5):
        pole = GymnasiumEnvironment("CartPole-v1", bins=CARTPOLE)
        observation = pole.reset(NOTHING, seed=seed)
        while not observation.done:
            observation = do(pole, lean(said(observation)))
            steps += 1
    assert steps / 5 > 400


def test_digits_are_ten_bins_whose_ends_hold_what_lies_beyond() -> None:
    pole = GymnasiumEnvironment("CartPole-v1", bins=[(-1, 1)] * 4)
    pole.reset(NOTHING, seed=0)
    assert pole._text([-9, -0.01, 0.01, 9]) == "0459"
    assert pole._text([-1, -0.79, 0.81, 1]) == "0199"


def test_the_same_seed_is_the_same_episode_and_another_is_not() -> None:
    def played(seed: int) -> list[str]:
        pole = GymnasiumEnvironment("CartPole-v1")
        return [said(pole.reset(NOTHING, seed=seed)), *(said(do(pole, action)) for action in "0110")]

    assert played(7) == played(7)
    assert played(7) != played(8)


def test_a_reply_that_is_no_action_is_answered_and_moves_nothing() -> None:
    lake = GymnasiumEnvironment("FrozenLake-v1", options=LAKE)
    lake.reset(NOTHING, seed=0)
    answered = do(lake, "to the shore")
    assert said(answered) == "That is not an action. Answer with one of 0 1 2 3"
    assert (answered.reward, answered.done) == (None, False)
    assert said(do(lake, "2")) == "1"


@pytest.mark.parametrize("reply", ["", "   ", "4", "-1", "0 or 1?!x", "左", "1" * 10_000])
def test_after_the_limit_of_misunderstandings_the_episode_is_truncated(reply: str) -> None:
    lake = GymnasiumEnvironment("FrozenLake-v1", options=LAKE, misunderstood_limit=2)
    lake.reset(NOTHING, seed=0)
    assert not do(lake, reply).done
    last = do(lake, reply)
    assert (last.reward, last.terminated, last.truncated) == (None, False, True)


def test_what_the_task_says_comes_before_what_is_seen() -> None:
    lake = GymnasiumEnvironment("FrozenLake-v1", options=LAKE)
    task = Task(id="0", messages=(Message(role="system", content="be brief"), Message(role="user", content="cross")))
    first = lake.reset(task, seed=0)
    assert [(message.role, message.content) for message in first.messages] == [
        ("system", "be brief"),
        ("user", "cross\n\n0"),
    ]


def test_tuples_are_numbers_in_order() -> None:
    cards = GymnasiumEnvironment("Blackjack-v1")
    first = said(cards.reset(NOTHING, seed=3)).split()
    assert len(first) == 3
    assert do(cards, "0").terminated


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"id": "NoSuchGame-v0"}, "cannot make NoSuchGame-v0"),
        ({"id": "CartPole-v1", "options": {"wheels": 3}}, "cannot make CartPole-v1"),
        ({"id": "Pendulum-v1"}, "have no text form"),
        ({"id": "CartPole-v1", "actions": ["left"]}, "has 1 names for the 2 actions"),
        ({"id": "CartPole-v1", "actions": ["go left", "right"]}, "one word"),
        ({"id": "CartPole-v1", "bins": [(0, 1)]}, "bins needs 4 pairs"),
        ({"id": "CartPole-v1", "bins": [(1, 0)] * 4}, "low < high"),
        ({"id": "CartPole-v1", "bins": CARTPOLE, "text": "a:b"}, "not both"),
        ({"id": "CartPole-v1", "text": "no_such_module:f"}, "cannot be imported"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GymnasiumEnvironment(**arguments)  # type: ignore[arg-type]
