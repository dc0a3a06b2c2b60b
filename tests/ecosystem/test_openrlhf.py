"""OpenRLHF's reward client, unmodified, reads what `rlhf serve reward` answers at `/get_reward`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.commanded import commanded
from tests.ecosystem.venvs import run

pytestmark = pytest.mark.ecosystem


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    with commanded("reward", "exact") as (url, _):
        yield run("openrlhf", "openrlhf_client.py", f"{url}/get_reward")


def test_its_rollouts_have_the_rewards_of_their_replies(told: dict[str, Any]) -> None:
    right, wrong, _ = told["rollouts"]
    assert right == {"reward": [1.0], "scores": [1.0], "extra_logs": {}}
    assert wrong == {"reward": [0.0], "scores": [0.0], "extra_logs": {}}


def test_a_reply_that_cannot_be_scored_has_no_reward_rather_than_a_number(told: dict[str, Any]) -> None:
    assert told["rollouts"][2]["reward"] is None
    assert told["rollouts"][2]["scores"] is None


def test_its_batches_have_a_reward_for_each_query_in_order(told: dict[str, Any]) -> None:
    assert told["batch"] == [{"rewards": [1.0, 0.0], "scores": [1.0, 0.0], "extra_logs": {}}]
