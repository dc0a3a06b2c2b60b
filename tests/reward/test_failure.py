"""A scorer that breaks over a reply gives no number, or the recipe's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf.config import build
from rlhf.errors import ConfigError
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import FailuresValued, make_reward
from rlhf.trainer.credit.statistics import losses_by_kind
from rlhf.types import Group, Sample, Scored, Ticket, Unscored
from tests.reward.asked import TASK, replies, scored
from tests.reward.test_combine import Fixed


async def test_what_a_reply_can_cause_has_the_recipe_s_number_and_an_outage_has_none() -> None:
    outage, hung = Unscored(kind="refused", detail="no server"), Unscored(kind="timeout", detail="killed")
    reward = FailuresValued(Fixed(Scored(value=1), hung, outage), -2.0)
    assert await scored(reward, "a", "b", "c") == [
        Scored(value=1),
        Scored(value=-2.0, parts={"failed: timeout": -2.0}, failure="timeout"),
        outage,
    ]


async def test_in_a_combination_a_part_s_number_is_weighted_as_its_score_would_be() -> None:
    raising = {"kind": "function", "function": "tests.reward.faulty_scorers:misbehave", "weight": 3}
    config = {"kind": "combined", "parts": {"own": raising | {"on_scorer_failure": -1}, "rule": {"kind": "exact"}}}
    reward = make_reward(build(RewardConfig, config))
    try:
        [score] = await reward(TASK, replies("42"))
    finally:
        await reward.close()
    assert score == Scored(value=-2.0, parts={"own": -1.0, "rule": 1.0}, failure="own: raised")
    [trajectory] = replies("42")
    group = Group(ticket=Ticket(ordinal=0, version=0), task=TASK, samples=(Sample(trajectory=trajectory, score=score),))
    assert losses_by_kind([group]) == {"samples/scorer_failed/own: raised": 1.0}


@pytest.mark.parametrize(
    ("config", "worth"),
    [
        ({"kind": "math"}, 0.0),
        ({"kind": "regex", "pattern": "x"}, 0.0),
        ({"kind": "code"}, 0.0),
        ({"kind": "code", "on_scorer_failure": -1}, -1.0),
        ({"kind": "math", "on_scorer_failure": "unscored"}, None),
        ({"kind": "function", "function": "m:f"}, None),
        ({"kind": "exact"}, None),
    ],
)
def test_a_rule_that_a_reply_breaks_has_its_lowest_unless_the_recipe_says_otherwise(
    config: dict[str, Any], worth: float | None
) -> None:
    assert build(RewardConfig, config).worth_of_failures == worth


@pytest.mark.parametrize(
    ("part", "worth"),
    [
        ({"kind": "regex", "pattern": "x", "weight": -0.5}, 1.0),
        ({"kind": "math", "weight": -1}, 1.0),
        ({"kind": "code", "weight": -1}, 1.0),
        ({"kind": "code", "weight": 0}, 0.0),
        ({"kind": "math", "weight": 2}, 0.0),
        ({"kind": "math", "weight": -1, "on_scorer_failure": 0.5}, 0.5),
        ({"kind": "math", "weight": -1, "on_scorer_failure": "unscored"}, None),
        ({"kind": "function", "function": "m:f", "weight": -1}, None),
    ],
)
def test_a_penalty_that_a_reply_breaks_is_the_whole_of_it_unless_the_recipe_says_otherwise(
    part: dict[str, Any], worth: float | None
) -> None:
    config = build(RewardConfig, {"kind": "combined", "parts": {"penalty": part}})
    assert config.parts["penalty"].worth_of_failures == worth


@pytest.mark.waits
async def test_a_reply_that_breaks_a_penalty_pays_it() -> None:
    penalty = {"kind": "regex", "pattern": "bad$|(?:a+)+b", "weight": -2.0, "timeout_seconds": 1}
    reward = make_reward(build(RewardConfig, {"kind": "combined", "parts": {"penalty": penalty}}))
    try:
        scores = await reward(TASK, replies("this is bad", "fine", "a" * 40 + " is bad"))
    finally:
        await reward.close()
    assert [score.value for score in scores if isinstance(score, Scored)] == [-2.0, 0.0, -2.0]


@pytest.mark.waits
async def test_a_pattern_that_backtracks_earns_0_and_a_reference_that_is_none_leaves_the_reply_unscored() -> None:
    pattern = make_reward(build(RewardConfig, {"kind": "regex", "pattern": "(a+)+$", "timeout_seconds": 0.5}))
    mathematics = make_reward(build(RewardConfig, {"kind": "math"}))
    try:
        [hung] = await pattern(TASK, replies("a" * 60 + "b"))
        [no_answer] = await mathematics(replace(TASK, answer="???"), replies("42"))
    finally:
        await pattern.close()
        await mathematics.close()
    assert (hung.value, hung.failure) == (0.0, "timeout")
    assert isinstance(no_answer, Unscored)
    assert no_answer.kind == "no answer"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "exact", "on_scorer_failure": 0}, "a reply cannot break"),
        ({"kind": "format", "on_scorer_failure": 0}, "a reply cannot break"),
        ({"kind": "math", "on_scorer_failure": "zero"}, "on_scorer_failure"),
        ({"kind": "math", "on_scorer_failure": float("nan")}, "on_scorer_failure"),
    ],
)
def test_what_means_nothing_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(RewardConfig, config)
