"""A recipe's reward scores a group in order, with named parts, and never invents a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf.config import build
from rlhf.errors import ConfigError
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.types import Scored, Task
from tests.reward.asked import TASK, kinds, scored


async def test_every_trajectory_is_answered_in_order() -> None:
    assert await scored(make_reward(RewardConfig(kind="exact")), "41", "42", "") == [
        Scored(value=value, parts={"exact": value}) for value in (0.0, 1.0, 0.0)
    ]


async def test_regex_and_math_compare_with_the_tasks_answer_not_with_the_raw_column() -> None:
    task = replace(TASK, row={"answer": "no: #### 42"})
    for config in (RewardConfig(kind="math"), RewardConfig(kind="regex", pattern=r"####\s*(\d+)")):
        assert await scored(make_reward(config), "#### 42", "#### 43", task=task) == [
            Scored(value=value, parts={config.kind: value}) for value in (1.0, 0.0)
        ]


async def test_a_function_reads_the_datasets_own_row() -> None:
    config = RewardConfig(kind="function", function="tests.reward.faulty_scorers:misbehave", timeout_seconds=0.5)
    scores = await scored(make_reward(config), "true", "raise")
    assert scores[0] == Scored(value=1.0, parts={"misbehave": 1.0})
    assert kinds(scores) == ["scored", "raised"]


async def test_a_function_has_the_recipe_s_arguments_and_one_that_does_not_take_them_is_refused() -> None:
    function = {"kind": "function", "function": "tests.reward.faulty_scorers:worth"}
    assert await scored(make_reward(RewardConfig(**function, arguments={"each": 0.5})), "abcd") == [
        Scored(value=2.0, parts={"worth": 2.0})
    ]
    with pytest.raises(ConfigError, match="got an unexpected keyword argument 'every'"):
        await scored(make_reward(RewardConfig(**function, arguments={"each": 1, "every": 0.5})), "abcd")
    with pytest.raises(ConfigError, match="arguments belong to kind: function"):
        build(RewardConfig, {"kind": "exact", "arguments": {"each": 1}})


@pytest.mark.parametrize("kind", ["exact", "math"])
async def test_a_task_without_an_answer_is_unscored(kind: str) -> None:
    reward = make_reward(build(RewardConfig, {"kind": kind}))
    assert kinds(await scored(reward, "42", task=Task(id="t", messages=()))) == ["no answer"]
