"""A combination is a weighted sum with named parts, and has no number where a part has none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rlhf.config import build
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import CombinedReward, EnvironmentReward, combined, make_reward
from rlhf.types import Scored, Task, Trajectory, Unscored
from tests.reward.asked import TASK, kinds, replies, scored
from tests.reward.test_environment import trajectory


class Fixed:
    """Gives what it was made with; knows whether it runs."""

    def __init__(self, *scores: Scored | Unscored) -> None:
        self.scores, self.running = scores, False

    async def start(self) -> None:
        self.running = True

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        await asyncio.sleep(0)
        return list(self.scores)

    async def close(self) -> None:
        self.running = False


@pytest.mark.waits
async def test_the_documented_sum_of_form_and_answer_is_paid_in_full() -> None:
    parts = {"answer": {"kind": "math", "weight": 1.0}, "form": {"kind": "format", "weight": 0.2}}
    reward = make_reward(build(RewardConfig, {"kind": "combined", "parts": parts}))
    full, thought, formless = await scored(
        reward,
        "<think>6 * 7</think><answer>42</answer>",
        "<think>42</think><answer>41</answer>",
        "<think>6 * 7</think>\n42",
    )
    assert [score.value for score in (full, thought, formless) if isinstance(score, Scored)] == [1.2, 0.2, 1.0]


async def test_a_task_with_an_empty_answer_has_no_score() -> None:
    task = replace(TASK, answer="")
    assert kinds(await scored(make_reward(build(RewardConfig, {"kind": "exact"})), "", task=task)) == ["no answer"]


def numbers(*values: float) -> Fixed:
    return Fixed(*(Scored(value=value) for value in values))


async def test_the_value_is_the_weighted_sum_and_the_parts_are_before_weighting() -> None:
    reward = CombinedReward({"a": numbers(1, 0), "b": numbers(3, 4)}, {"a": 2, "b": -0.5})
    assert await scored(reward, "x", "y") == [
        Scored(value=0.5, parts={"a": 1, "b": 3}),
        Scored(value=-2, parts={"a": 0, "b": 4}),
    ]


async def test_one_unscored_part_leaves_the_whole_unscored_with_its_name_and_touches_no_other_reply() -> None:
    broken = Fixed(Scored(value=1), Unscored(kind="timeout", detail="killed after 10 s"))
    for weight in (1.0, 0.0):
        reward = CombinedReward({"exact": numbers(1, 1), "judge": broken}, {"exact": 1, "judge": weight})
        first, second = await scored(reward, "x", "y")
        assert isinstance(first, Scored)
        assert second == Unscored(kind="judge: timeout", detail="killed after 10 s")


def test_what_parts_say_of_their_numbers_is_kept_under_their_names() -> None:
    trusting = Scored(value=1.0, detail="2 of 2 tests pass (script, trusting)")
    outcome = combined({"tests": trusting, "form": Scored(value=1.0)}, {"tests": 1.0, "form": 1.0})
    assert isinstance(outcome, Scored)
    assert outcome.detail == "tests: 2 of 2 tests pass (script, trusting)"


@pytest.mark.parametrize(("value", "other", "weight"), [(1e308, 1e308, 1e10), (1e308, -1e308, 1e10), (2.0, 0.0, 3e38)])
def test_a_sum_that_overflows_is_no_number(value: float, other: float, weight: float) -> None:
    outcome = combined({"a": Scored(value=value), "b": Scored(value=other)}, {"a": weight, "b": weight})
    assert isinstance(outcome, Unscored)
    assert outcome.kind == "not finite"


@pytest.mark.parametrize("weight", [1.0, -2.0, 0.0])
async def test_the_turns_of_an_environment_are_paid_with_the_weight_of_its_part(weight: float) -> None:
    parts = {"game": EnvironmentReward(), "form": numbers(0.25)}
    [score] = await CombinedReward(parts, {"game": weight, "form": 1})(TASK, [trajectory(0.5, 1.0)])
    values = {"game": 1.5, "form": 0.25}
    assert score == Scored(value=weight * 1.5 + 0.25, parts=values, turn_weight=weight)


async def test_parts_that_are_only_recorded_leave_an_environment_alone_the_judge() -> None:
    parts = {"game": EnvironmentReward(), "form": numbers(0.25)}
    [score] = await CombinedReward(parts, {"game": 2, "form": 0})(TASK, [trajectory(0.5, 1.0)])
    assert isinstance(score, Scored)
    assert (score.value, score.turn_weight, score.only_turns) == (3.0, 2.0, True)


async def test_all_parts_are_started_and_closed() -> None:
    parts = [numbers(1), numbers(2)]
    reward = CombinedReward({str(n): part for n, part in enumerate(parts)}, {"0": 1, "1": 1})
    await reward.start()
    assert all(part.running for part in parts)
    await reward.close()
    assert not any(part.running for part in parts)


async def test_a_recipe_combines_rules_and_servers_by_name() -> None:
    config = build(
        RewardConfig,
        {
            "kind": "combined",
            "parts": {
                "answer": {"kind": "exact", "weight": 2},
                "form": {"kind": "format", "tags": ["a"], "weight": 0.5},
            },
        },
    )
    assert config.needs_answer
    assert await scored(make_reward(config), "42", "<a>1</a>") == [
        Scored(value=2.0, parts={"answer": 1.0, "form": 0.0}),
        Scored(value=0.5, parts={"answer": 0.0, "form": 1.0}),
    ]


async def test_a_reward_model_takes_its_place_among_the_parts() -> None:
    parts = {"rule": {"kind": "exact"}, "taste": {"kind": "model", "model": "somebody/taste", "weight": 0.1}}
    config = build(RewardConfig, {"kind": "combined", "parts": parts})
    assert config.model_scorer is config.parts["taste"]
    reward = make_reward(config, model=numbers(5.0))
    assert await reward(TASK, replies("42")) == [Scored(value=1.5, parts={"rule": 1.0, "taste": 5.0})]


async def test_a_task_without_an_answer_has_no_sum() -> None:
    config = build(RewardConfig, {"kind": "combined", "parts": {"rule": {"kind": "exact"}}})
    task = Task(id="t", messages=())
    assert kinds(await scored(make_reward(config), "42", task=task)) == ["rule: no answer"]
