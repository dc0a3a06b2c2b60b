"""A server that is gone is waited for, and a request that it cannot answer is not; on real servers that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI

from rlhf.config import build
from rlhf.errors import HttpFailed
from rlhf.http.outages import Outages
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.reward.reward_interface import LiveReward
from rlhf.types import Scored
from tests.pace import scaled
from tests.reward.asked import kinds, replies, scored
from tests.servers import DROP, HANG, Asked, Reply, running, scripted

ATTEMPTS = 2
QUICK = {"attempts": ATTEMPTS, "initial_backoff_seconds": 0.001, "max_backoff_seconds": 0.01}


def judged(url: str, outages: Outages, **keys: Any) -> LiveReward:
    values = {"kind": "remote", "remote": {"url": url, "api": "slime"}, "http": QUICK, "timeout_seconds": scaled(5)}
    return make_reward(build(RewardConfig, values | keys), outages=outages)


def patient(seconds: float = 60) -> tuple[Outages, list[str]]:
    told: list[str] = []
    return Outages(seconds=scaled(seconds), tell=told.append), told


async def comes(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(scaled(20)):
        while not condition():
            await asyncio.sleep(0.005)


async def test_what_a_dead_server_was_to_score_is_scored_when_it_is_back_and_told_once() -> None:
    outages, told = patient()
    app = FastAPI()

    @app.post("/")
    async def length(body: dict[str, Any]) -> int:
        return len(body["response"])

    with running(app) as url:
        reward = judged(url, outages)
        await reward(*group("known"))
    waiting = [asyncio.create_task(reward(*group("a", "bb"))) for _ in range(3)]
    await comes(lambda: told)
    assert outages.out == {url}
    assert not any(task.done() for task in waiting)
    with running(app, urlsplit(url).port or 0):
        scores = await asyncio.gather(*waiting)
    await reward.close()
    assert scores == [[Scored(value=float(n), parts={"remote": float(n)}) for n in (1, 2)]] * 3
    assert [url in words for words in told] == [True, True]
    assert "refused" in told[0]
    assert "answers again" in told[1]
    assert not outages.out


def group(*texts: str) -> tuple[Any, Any]:
    played = replies(*texts)
    return played[0].task, played


@pytest.mark.parametrize("fault", [HANG, DROP, (503, "full"), (500, "oops")])
async def test_after_the_patience_replies_have_no_score_whatever_the_recipe_says_of_failures(fault: Reply) -> None:
    outages, told = patient(0.1)
    async with scripted(lambda asked: fault) as server:
        keys = {"on_scorer_failure": 0.0, "timeout_seconds": scaled(0.1)}
        reward = judged(server.url, outages, **keys)
        first = await reward(*group("a", "b"))
        asked = len(server.posts())
        assert kinds(first) == ["outage", "outage"]
        assert kinds(await scored(reward, "c")) == ["outage"]
        assert len(server.posts()) == asked + ATTEMPTS  # the time is the outage's, not that of each call
    assert len(told) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ((500, "oops"), "server"),
        (HANG, "timeout"),
        (DROP, "lost"),
        ((422, "too long"), "rejected"),
        ((200, "x"), "protocol"),
    ],
)
async def test_a_reply_that_the_server_cannot_score_is_not_waited_for(fault: Reply, kind: str) -> None:
    outages, told = patient()
    async with scripted(lambda asked: fault if asked.json["response"] == "bad" else (200, 1.0)) as server:
        reward = judged(server.url, outages, timeout_seconds=scaled(0.3))
        await reward(*group("good"))
        assert kinds(await scored(reward, "bad", "good")) == [kind, "scored"]
    assert not told


async def test_a_reply_that_ends_its_server_three_times_has_no_score() -> None:
    outages, told = patient()
    ended, left = 0, 0

    def script(asked: Asked) -> Reply:
        nonlocal ended, left
        if asked.json["response"] == "poison" and not left:
            ended, left = ended + 1, 8
            return DROP
        left = max(0, left - 1)
        return (503, "starting") if left else (200, 1.0)

    async with scripted(script) as server:
        reward = judged(server.url, outages)
        await reward(*group("good"))
        assert kinds(await scored(reward, "poison")) == ["busy"]
    assert ended == 3
    assert ["again" in words for words in told] == [False, True] * 3


async def test_one_that_gives_up_waiting_leaves_the_asking_to_another() -> None:
    outages, told = patient()
    down = True
    async with scripted(lambda asked: (503, "full") if down else (200, 1.0)) as server:
        reward = judged(server.url, outages)
        first = asyncio.create_task(reward(*group("a")))
        await comes(lambda: told)
        second = asyncio.create_task(reward(*group("b")))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.wait((first,), timeout=scaled(1))
        assert first.cancelled()
        down = False
        assert kinds(await second) == ["scored"]
    await reward.close()


async def test_a_server_that_is_not_there_at_the_start_is_an_error_at_once() -> None:
    outages, told = patient()
    with running(FastAPI()) as url:
        pass
    with pytest.raises(HttpFailed, match="refused"):
        await judged(url, outages).start()
    assert not told
