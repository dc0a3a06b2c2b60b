"""A recipe's reward scores a group in order, with named parts, and never invents a number."""

from __future__ import annotations

import pytest

from rlhf.config import build
from rlhf.errors import ConfigError
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.types import EpisodeStatus, Scored, Task, Trajectory, Unscored
from tests.pace import scaled

TASK = Task(id="t", messages=(), answer="42", row={"answer": "no: #### 42", "bonus": 2})


def replies(*texts: str, task: Task = TASK) -> list[Trajectory]:
    return [Trajectory(task=task, segments=(), status=EpisodeStatus.TERMINATED, response=text) for text in texts]


async def scored(config: RewardConfig, *texts: str, task: Task = TASK) -> list[Scored | Unscored]:
    reward = make_reward(config)
    try:
        return await reward(task, replies(*texts, task=task))
    finally:
        await reward.close()


async def test_every_trajectory_is_answered_in_order() -> None:
    assert await scored(RewardConfig(kind="exact"), "41", "42", "") == [
        Scored(value=value, parts={"exact": value}) for value in (0.0, 1.0, 0.0)
    ]


async def test_regex_and_math_compare_with_the_tasks_answer_not_with_the_raw_column() -> None:
    for config in (RewardConfig(kind="math"), RewardConfig(kind="regex", pattern=r"####\s*(\d+)")):
        assert await scored(config, "#### 42", "#### 43") == [
            Scored(value=value, parts={config.kind: value}) for value in (1.0, 0.0)
        ]


async def test_a_function_reads_the_datasets_own_row() -> None:
    config = RewardConfig(kind="function", function="tests.reward.faulty_scorers:misbehave", timeout_seconds=0.5)
    good, broken = await scored(config, "true", "raise")
    assert good == Scored(value=1.0, parts={"misbehave": 1.0})
    assert isinstance(broken, Unscored)
    assert broken.kind == "raised"


async def test_a_function_has_the_recipe_s_arguments_and_one_that_does_not_take_them_is_refused() -> None:
    function = {"kind": "function", "function": "tests.reward.faulty_scorers:worth"}
    assert await scored(RewardConfig(**function, arguments={"each": 0.5}), "abcd") == [
        Scored(value=2.0, parts={"worth": 2.0})
    ]
    with pytest.raises(ConfigError, match="got an unexpected keyword argument 'every'"):
        await scored(RewardConfig(**function, arguments={"each": 1, "every": 0.5}), "abcd")
    with pytest.raises(ConfigError, match="arguments are those of kind: function"):
        build(RewardConfig, {"kind": "exact", "arguments": {"each": 1}})


async def test_a_pattern_that_backtracks_for_ever_is_killed_and_earns_the_lowest() -> None:
    config = RewardConfig(kind="regex", pattern=r"^(a+)+$", timeout_seconds=0.5)
    slow, quick = await scored(config, "a" * 40 + "b", "42")
    assert isinstance(slow, Scored)
    assert (slow.value, slow.failure) == (0.0, "timeout")
    assert isinstance(quick, Scored)
    assert quick.failure == ""


@pytest.mark.waits
async def test_an_expression_that_grows_for_ever_is_not_evaluated() -> None:
    (outcome,) = await scored(RewardConfig(kind="math", timeout_seconds=scaled(2)), "#### 9^9^9^9^9")
    assert outcome == Scored(value=0.0, parts={"math": 0.0})


@pytest.mark.parametrize("kind", ["exact", "math"])
async def test_a_task_without_an_answer_is_unscored(kind: str) -> None:
    (outcome,) = await scored(build(RewardConfig, {"kind": kind}), "42", task=Task(id="t", messages=()))
    assert isinstance(outcome, Unscored)
    assert outcome.kind == "no answer"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "regex"}, "reward.pattern is required"),
        ({"kind": "regex", "pattern": "("}, "not a regular expression"),
        ({"kind": "function", "function": "score"}, "module:function"),
    ],
)
def test_an_incomplete_reward_is_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(RewardConfig, values)
