"""A reward function sees the episode that its parameters ask for, in the form of the project that it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.reward.config import RewardConfig
from rlhf.reward.conventions import convention_of
from rlhf.reward.reward import make_reward
from rlhf.types import EpisodeStatus, Message, Scored, Segment, Task, TokenKind, Trajectory, Unscored
from tests.reward import users_rewards

ROW = {"answer": "7", "data_source": "gsm8k", "reward_model": {"ground_truth": "7"}}
THOUGHT = "<think>3+4</think>7"


def episode(
    response: str, row: dict[str, Any], *, infos: Sequence[dict[str, Any]] = (), cut: bool = False
) -> Trajectory:
    task = Task(id="t", messages=(Message(role="user", content="3+4?"),), answer="7", row=row)
    sampled = Segment(
        token_ids=np.array([5, 6, 7], np.int32),
        kinds=np.array([TokenKind.PROMPT, TokenKind.ACTION, TokenKind.ACTION], np.int8),
        behaviour_logprobs=np.zeros(3, np.float32),
        versions=np.zeros(3, np.int32),
    )
    status = EpisodeStatus.TRUNCATED if cut else EpisodeStatus.TERMINATED
    return Trajectory(task=task, segments=(sampled,), status=status, response=response, env_info=tuple(infos))


@pytest.mark.waits
@pytest.mark.parametrize(
    ("function", "replies", "row", "values"),
    [
        ("ours", ["7", "8"], ROW, [1, 0]),
        ("by_name", ["7"], ROW, [2]),
        ("conversation_only", ["7"], ROW, [13]),
        ("diversity", ["a", "b", "a", "a"], ROW, [1 / 3, 1, 1 / 3, 1 / 3]),
        ("batch_of_ours", ["ab", "abcd"], ROW, [0.5, 1]),
        ("awaited", ["1", "2", "3"], ROW, [1, 2, 3]),
        ("trl_format", [THOUGHT, "7"], ROW, [1, 0]),
        ("trl_correct", [THOUGHT, "8"], ROW, [2, None]),
        ("trl_plain", ["7", "77"], {"prompt": "3+4?"}, [5, 6]),
        ("verl", ["so 7", "8"], ROW, [1, 0]),
        ("verifiers", [THOUGHT, "8"], ROW, [1, 0]),
        ("reward_func", ["7", "8"], ROW, [1, 0]),
        ("too_few", ["7", "8"], ROW, [None, None]),
    ],
)
async def test_a_function_is_called_as_its_parameters_say(
    function: str, replies: list[str], row: dict[str, Any], values: list[float | None]
) -> None:
    scores = await scored(function, [episode(reply, row) for reply in replies])
    assert [one.value if isinstance(one, Scored) else None for one in scores] == pytest.approx(values)


async def scored(function: str, episodes: list[Trajectory], **arguments: Any) -> list[Scored | Unscored]:
    name = f"tests.reward.users_rewards:{function}"
    reward = make_reward(RewardConfig(kind="function", function=name, arguments=arguments))
    await reward.start()
    try:
        return await reward(episodes[0].task, episodes)
    finally:
        await reward.close()


@pytest.mark.waits
async def test_an_episode_brings_what_its_environment_said_its_limits_and_the_arguments() -> None:
    (score,) = await scored("state_of_the_environment", [episode("", {}, infos=[{"moves": 1}, {"moves": 4}])])
    assert score == Scored(value=24.0, parts={"state_of_the_environment": 24.0})
    found = await scored("by_name", [episode("7", ROW), episode("7", ROW, cut=True)], bonus=0.5)
    assert [one.value for one in found if isinstance(one, Scored)] == [2.5, -1.0]


@pytest.mark.waits
async def test_a_parameter_that_nothing_fills_is_named() -> None:
    with pytest.raises(ConfigError, match="parameter 'tokenizer' is not one of response, row, answer, prompt"):
        await scored("unknown", [episode("7", ROW)])


@pytest.mark.parametrize(
    ("function", "convention"),
    [
        ("ours", "ours"), ("batch_of_ours", "ours"), ("trl_format", "TRL"), ("verl", "verl"),
        ("verifiers", "verifiers"), ("reward_func", "OpenRLHF"),
    ],
)  # fmt: skip
def test_conventions_have_names(function: str, convention: str) -> None:
    assert convention_of(vars(users_rewards)[function], {}).name == convention


def test_a_function_of_two_parameters_asks_for_nothing_else() -> None:
    found = convention_of(users_rewards.ours, {})
    assert (found.wants, found.grouped) == ((), False)


@pytest.mark.waits
async def test_a_part_sees_the_scores_of_the_others() -> None:
    module = "tests.reward.users_rewards"
    listed = [{"kind": "exact", "weight": 0}, f"{module}:only_if_right", f"{module}:trl_of_sevens"]
    config = recipe_from({"model": {"path": "m"}, "data": {"train": {"path": "d"}}, "reward": listed}).recipe.reward
    reward = make_reward(config)
    try:
        replies = [episode("7", ROW), episode("88", ROW)]
        scores = await reward(replies[0].task, replies)
    finally:
        await reward.close()
    assert [one for one in scores if isinstance(one, Unscored)] == []
    assert [(one.value, dict(one.parts)) for one in scores if isinstance(one, Scored)] == [
        (6.0, {"exact": 1.0, "only_if_right": 1.0, "trl_of_sevens": 5.0}),
        (0.0, {"exact": 0.0, "only_if_right": 0.0}),  # TRL leaves out what returns None
    ]


def test_a_list_of_scorers_without_a_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no kind; write module:function"):
        recipe_from({"model": {"path": "m"}, "data": {"train": {"path": "d"}}, "reward": [{"weight": 2}]})


@pytest.mark.waits
@pytest.mark.parametrize(("function", "reply"), [("verl", "so 7"), ("verifiers", "so 7"), ("reward_func", "7")])
async def test_functions_of_others_get_the_answer_that_the_recipe_reads(function: str, reply: str) -> None:
    row = {"total": "1 + 6 #### 7", "answer": "1 + 6 #### 7", "data_source": "gsm8k"}
    (score,) = await scored(function, [episode(reply, row)])  # the task's answer is 7, as answer_pattern finds it
    assert isinstance(score, Scored)
    assert score.value == 1
