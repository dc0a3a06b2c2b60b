"""Made metrics, and the sentences about them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhf.runs.alarms import alarms

NAN = None


def rows(name: str, values: Sequence[float | str | None], first: int = 1) -> list[dict[str, float | None]]:
    """An update for each value; `-` is an update without one."""
    return [
        {"update": update, "time": 0.0} | ({} if isinstance(value, str) else {name: value})
        for update, value in enumerate(values, first)
    ]


@pytest.mark.parametrize(
    ("name", "values", "sentences"),
    [
        (
            "policy/logprob_difference",
            [0.001] * 39 + [0.018, 0.03, 0.02],
            ["engine and learner differ by 0.02 nats since update 40"],
        ),
        ("policy/logprob_difference", [0.001] * 9 + [0.02, 0.02], []),
        ("policy/logprob_difference", [0.02] * 9 + [0.001], []),
        ("policy/logprob_difference", [0.001, 0.02, NAN], ["policy/logprob_difference is not a number since update 3"]),
        ("reward/equal_groups", [0.2, 1.0, 1.0, 1.0], ["rewards are equal in 100 % of the groups since update 2"]),
        (
            "policy/entropy",
            [0.5, 0.2, 0.001, 0.0005, 0.0],
            ["the policy hardly explores: its entropy is 0 nats since update 3"],
        ),
        ("policy/approx_kl", [1] * 3, ["KL of the policy to the one that sampled is 1 nats per token since update 1"]),
        (
            "policy/clip_fraction_high",
            [0.4] * 3,
            ["the upper clip removes the gradient of 40 % of the tokens since update 1"],
        ),
        ("response/truncated", [0, 0.3, 0.5, 0.5], ["a limit cut off 50 % of the episodes since update 2"]),
        ("two/response/truncated", [0.5] * 3, ["policy two: a limit cut off 50 % of the episodes since update 1"]),
        ("response/truncated", [0.9, 1], ["a limit cut off 100 % of the episodes since update 1"]),
        ("response/truncated", [1, 0.9], []),
        ("samples/lost", [0, 2, 1, 3], ["updates lose samples (3 samples in the last one) since update 2"]),
        ("groups/failed", [5, 5, 5, 5], []),
        ("groups/failed", [0, 1, 3, 7], ["groups fail (4 groups in the last update) since update 2"]),
        ("staleness/mean", [4.5, 5, 6], ["trained tokens are 6 updates old on average since update 1"]),
        ("reward/mean", [0.5, 0.5, "-", "-", "-"], ["reward/mean is missing since update 3"]),
        ("reward/mean", [0.5, 0.5, "-", "-"], []),
        ("reward/mean", ["-", "-", "-", 0.5], []),
        ("response/truncated_tokens_mean", [5, 5, "-", "-", "-"], []),
        ("reward/mean", [0.5, NAN], ["reward/mean is not a number since update 2"]),
        ("my_own", [0.5, NAN, NAN], ["my_own is not a number since update 2"]),
        ("my_own", [0.5, "-", "-", "-"], []),
        ("eval/held_out/truncated", [0.9] * 9, []),
        ("reward/mean", [], []),
    ],
)  # fmt: skip
def test_a_metric_that_is_not_healthy_is_a_sentence(
    name: str, values: Sequence[float | str | None], sentences: list[str]
) -> None:
    assert [alarm.sentence for alarm in alarms(rows(name, values))] == sentences


def test_alarms_come_in_the_order_of_the_catalogue() -> None:
    ill = [
        {"update": n, "mine": NAN, "policy/entropy": 0.0, "reward/equal_groups": 1.0, "optimizer/loss": NAN}
        for n in range(3)
    ]
    names = [alarm.metric for alarm in alarms(ill)]
    assert names == ["reward/equal_groups", "policy/entropy", "optimizer/loss", "mine"]
