"""Judges over a real OpenAI-compatible endpoint on loopback, whose opinions are known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rlhf.config import build
from rlhf.reward.config import RewardConfig
from rlhf.reward.judge import mean_comparisons
from rlhf.reward.reward import make_reward
from rlhf.reward.reward_interface import LiveReward
from rlhf.types import Scored, Unscored
from tests.reward.asked import TASK, kinds, replies, scored
from tests.servers import running

Opinion = Callable[[list[str]], str]
"""What a judge says of the replies that it is shown, in the order in which it is shown them."""


def endpoint(opinion: Opinion) -> FastAPI:
    """`/v1/chat/completions` of a model that has one opinion; a reply that says `break` breaks it."""
    app = FastAPI()
    app.state.asked = []

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        app.state.asked.append(body)
        shown = re.findall(r"The reply[ AB]*:\n<[^>]*>\n(.*?)\n</", body["messages"][1]["content"], re.DOTALL)
        if any("break" in reply for reply in shown):
            return JSONResponse({"error": "out of memory"}, status_code=500)
        message = {"role": "assistant", "content": opinion(shown)}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    return app


def judge(url: str, **keys: Any) -> LiveReward:
    values = {
        "kind": "judge",
        "judge": {"url": f"{url}/v1", "model": "judge-1", **keys},
        "http": {"attempts": 2, "initial_backoff_seconds": 0.001},
    }
    return make_reward(build(RewardConfig, values))


def by_length(shown: list[str]) -> str:
    first, second = map(len, shown)
    return "Verdict: " + ("tie" if first == second else "A" if first > second else "B")


def always_first(shown: list[str]) -> str:
    return "The first one is always better.\nVerdict: A"


def values(scores: list[Scored | Unscored]) -> list[float | None]:
    return [score.value if isinstance(score, Scored) else None for score in scores]


async def test_every_reply_gets_its_mark_and_the_judge_is_asked_as_the_recipe_says() -> None:
    app = endpoint(lambda shown: f"Well.\nVerdict: {len(shown[0])}")
    with running(app) as url:
        reward = judge(url, max_tokens=77, temperature=0.5)
        await reward.start()
        scores = await scored(reward, "a", "12345", "break", "a reply longer than ten")
    assert values(scores) == [0.1, 0.5, None, None]
    assert kinds(scores) == ["scored", "scored", "server", "verdict"]
    assert scores[0] == Scored(value=0.1, parts={"judge": 0.1})
    asked = app.state.asked[0]
    assert {key: asked[key] for key in ("model", "max_tokens", "temperature")} == {
        "model": "judge-1",
        "max_tokens": 77,
        "temperature": 0.5,
    }


async def test_pairs_are_compared_in_both_orders_and_the_share_won_is_the_reward() -> None:
    app = endpoint(by_length)
    with running(app) as url:
        scores = await scored(judge(url, mode="pairwise"), "aaa", "a", "aa", "bb")
    assert values(scores) == [1.0, 0.0, 0.5, 0.5]
    assert len(app.state.asked) == 2 * 6


async def test_a_judge_that_only_likes_what_it_sees_first_prefers_nobody() -> None:
    with running(endpoint(always_first)) as url:
        assert values(await scored(judge(url, mode="pairwise"), "a", "b", "c")) == [0.5, 0.5, 0.5]


async def test_the_same_reply_twice_is_a_tie_that_nobody_is_asked_about() -> None:
    app = endpoint(always_first)
    with running(app) as url:
        assert values(await scored(judge(url, mode="pairwise"), "a", "a")) == [0.5, 0.5]
    assert app.state.asked == []


async def test_a_comparison_that_was_lost_leaves_both_its_replies_without_a_number() -> None:
    with running(endpoint(by_length)) as url:
        scores = await scored(judge(url, mode="pairwise"), "aaa", "break")
    assert kinds(scores) == ["server", "server"]


async def test_a_reply_alone_cannot_be_compared() -> None:
    with running(endpoint(by_length)) as url:
        assert kinds(await scored(judge(url, mode="pairwise"), "a")) == ["alone"]


async def test_only_episodes_of_one_role_are_compared() -> None:
    app = endpoint(by_length)
    with running(app) as url:
        reward = judge(url, mode="pairwise")
        played = [replace(one, role=role) for one, role in zip(replies("aa", "a", "a", "aaa"), "xyxy", strict=True)]
        assert values(await reward(TASK, played)) == [1.0, 0.0, 0.0, 1.0]
        await reward.close()
    assert len(app.state.asked) == 2 * 2


def test_only_those_whose_comparison_was_lost_have_no_number() -> None:
    lost = Unscored(kind="timeout")
    assert mean_comparisons(3, {(0, 1): lost, (0, 2): 1.0, (1, 2): 0.0}) == [lost, lost, 0.5]
    assert mean_comparisons(3, {(0, 1): 1.0, (0, 2): 0.5, (1, 2): 0.0}) == [0.75, 0.0, 0.75]
