"""`rlhf serve reward` in a process of its own, as a trainer finds it."""

from __future__ import annotations

import signal

import httpx
import pytest

from rlhf.apps.cli.serve_reward import run_serve_reward
from rlhf.errors import UserError
from tests.commanded import commanded
from tests.pace import scaled

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("in_background", [False, True])
def test_a_rule_is_served_until_it_is_interrupted(in_background: bool) -> None:
    with commanded("reward", "math", in_background=in_background) as (url, process):
        body = {"query": ["6*7=#### 42", "6*7=#### 41"], "prompts": ["6*7="] * 2, "labels": ["42"] * 2}
        assert httpx.post(url + "/get_reward", json=body, timeout=scaled(60)).json()["rewards"] == [1.0, 0.0]
        process.send_signal(signal.SIGINT)
        assert process.wait(scaled(20)) in (0, -signal.SIGINT, 130)


def test_a_function_of_ones_own_that_hangs_is_an_error_and_no_number() -> None:
    with commanded("reward", "tests.reward.faulty_scorers:misbehave", "timeout_seconds=0.5") as (url, _):
        answers = [httpx.post(url + "/", json={"response": text}, timeout=scaled(60)) for text in ("hang", "true")]
    assert [answer.status_code for answer in answers] == [422, 200]
    assert "timeout" in answers[0].json()["error"]["message"]
    assert answers[1].json() == 1.0


@pytest.mark.parametrize(
    ("reward", "overrides", "message"),
    [
        ("exakt", [], "kind"),
        ("regex", [], "reward.pattern is required"),
        ("nowhere.yaml", [], "no such recipe"),
        ("exact", ["patern=x"], "did you mean 'pattern'"),
    ],
)
def test_a_reward_that_cannot_be_served_is_one_line(reward: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_serve_reward(reward, overrides)
