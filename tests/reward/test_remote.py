"""A reward server that breaks, in every way it can, gives no number; on real connections."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.config import build
from rlhf.errors import ConfigError, HttpFailed
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.reward.reward_interface import LiveReward
from rlhf.types import Scored
from tests.reward.asked import kinds, scored
from tests.servers import DROP, HANG, Asked, Reply, response, scripted

QUICK = {"attempts": 2, "initial_backoff_seconds": 0.001, "max_backoff_seconds": 0.01}


def remote(url: str, shape: str = "openrlhf", **keys: Any) -> LiveReward:
    values = {"kind": "remote", "remote": {"url": url, "api": shape}, "http": QUICK, "timeout_seconds": 5}
    return make_reward(build(RewardConfig, values | keys))


async def test_a_group_is_one_request_and_its_numbers_have_a_name() -> None:
    async with scripted(lambda asked: (200, {"rewards": [0.5, 1.5]})) as server:
        assert await scored(remote(server.url), "a", "b") == [
            Scored(value=value, parts={"remote": value}) for value in (0.5, 1.5)
        ]
        assert len(server.posts()) == 1


async def test_slime_gives_every_reply_its_own_answer() -> None:
    def script(asked: Asked) -> Reply:
        return (500, "no") if asked.json["response"] == "bad" else (200, len(asked.json["response"]))

    async with scripted(script) as server:
        scores = await scored(remote(server.url, "slime"), "abc", "bad", "")
    assert kinds(scores) == ["scored", "server", "scored"]
    assert scores[0] == Scored(value=3.0, parts={"remote": 3.0})


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (DROP, "lost"),
        (HANG, "timeout"),
        ((500, "broken"), "server"),
        ((503, "full"), "busy"),
        ((422, "no such label"), "rejected"),
        ((401, "who are you"), "denied"),
        (response(200, b"<html>"), "protocol"),
        ((200, None), "protocol"),
        ((200, {"rewards": [1.0]}), "protocol"),
        ((200, {"rewards": [[1.0], [2.0]]}), "protocol"),
        (response(200, b'{"rewards": [NaN, NaN]}'), "protocol"),
    ],
)
async def test_a_server_that_breaks_gives_no_number(fault: Reply, kind: str) -> None:
    async with scripted(lambda asked: fault) as server:
        timeout = 0.1 if fault == HANG else 5
        assert kinds(await scored(remote(server.url, timeout_seconds=timeout), "a", "b")) == [kind, kind]


async def test_a_server_that_does_not_take_the_token_is_known_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_TOKEN", "wrong")
    async with scripted(lambda asked: (401, "who are you")) as server:
        reward = remote(server.url, remote={"url": server.url, "token_env": "REWARD_TOKEN"})
        with pytest.raises(HttpFailed, match="denied"):
            await reward.start()
        await reward.close()


async def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_TOKEN", "secret")
    async with scripted(lambda asked: (200, {"rewards": [1.0]})) as server:
        await scored(remote(server.url, remote={"url": server.url, "token_env": "REWARD_TOKEN"}), "a")
        assert server.asked[0].headers["authorization"] == "Bearer secret"
    monkeypatch.delenv("REWARD_TOKEN")
    with pytest.raises(ConfigError, match="REWARD_TOKEN must hold a token, but is empty"):
        remote("http://h", remote={"url": "http://h", "token_env": "REWARD_TOKEN"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "regex"}, "reward.pattern is required"),
        ({"kind": "regex", "pattern": "("}, "not a regular expression"),
        ({"kind": "function", "function": "score"}, "module:function"),
        ({"kind": "remote"}, "reward.remote and kind: remote belong together"),
        ({"kind": "exact", "remote": {"url": "http://h"}}, "give both or neither"),
        ({"kind": "remote", "remote": {"url": "h:80"}}, r"remote\.url"),
        ({"kind": "remote", "remote": {"url": "http://h", "sends": "tokens"}}, "sends: tokens is for vllm_classify"),
        ({"kind": "judge", "judge": {"url": "http://h", "model": "m", "low": 3, "high": 3}}, "must be less than"),
        ({"kind": "exact", "recording": {"path": "x"}}, "only for kinds remote and judge"),
        ({"kind": "combined"}, "reward.parts and kind: combined belong together"),
        ({"kind": "exact", "parts": {"a": {"kind": "exact"}}}, "give both or neither"),
        ({"kind": "combined", "parts": {"a": {"kind": "combined"}}}, "cannot have kind: combined"),
        ({"kind": "combined", "parts": {"a": {"kind": "exact", "weight": float("inf")}}}, "weight"),
        ({"kind": "combined", "parts": {"a": {"kind": "exact", "weight": 1e300}}}, "weight"),
        ({"kind": "math", "on_scorer_failure": -1e300}, "on_scorer_failure"),
        (
            {
                "kind": "combined",
                "parts": {
                    n: {"kind": "remote", "remote": {"url": "http://h"}, "recording": {"path": "x"}} for n in "ab"
                },
            },
            "have the same recording.path",
        ),
        ({"kind": "combined", "parts": {n: {"kind": "model", "model": "m"} for n in "ab"}}, "more than one of kind"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(RewardConfig, values)
