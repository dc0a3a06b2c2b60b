"""A model behind a real HTTP server plays as an opponent; what it does not say is a failure and never a move."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from recipes.tasks.tictactoe import TicTacToeEnvironment
from rlhf.env.chat_opponent import ChatOpponent
from rlhf.env.config import EnvironmentConfig
from rlhf.errors import ConfigError, OpponentFailed
from rlhf.types import Message, Task
from tests.servers import HANG, Reply, nobody, scripted

pytestmark = pytest.mark.waits

TASK = Task(id="0", messages=(Message(role="system", content="Win."),))
NOTHING = Task(id="0", messages=())


def said(text: str | None) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def settings(url: str, **others: Any) -> ChatOpponent:
    return ChatOpponent(url=f"{url}/v1", model="earlier", **others)


def replies(chosen: ChatOpponent, *shown: str, seed: int = 0) -> list[str]:
    player = chosen.seat(TASK, random.Random(seed))
    return [player(text) for text in shown]


async def test_it_is_asked_with_the_task_and_all_that_was_said() -> None:
    async with scripted(lambda asked: said(str(len(asked.json["messages"])))) as server:
        chosen = settings(server.url, temperature=0.7, max_tokens=9)
        assert await asyncio.to_thread(replies, chosen, "a", "b", "c") == ["2", "4", "6"]
    last = server.asked[-1]
    assert (last.method, last.path) == ("POST", "/v1/chat/completions")
    assert last.json | {"seed": 0} == {
        "model": "earlier", "temperature": 0.7, "max_tokens": 9, "seed": 0,
        "messages": [
            {"role": "system", "content": "Win."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "c"},
        ],
    }  # fmt: skip


def test_its_deadline_is_within_that_of_the_environments_step() -> None:
    own = EnvironmentConfig(environment="a:B").turn_timeout_seconds
    assert settings("http://127.0.0.1:1").seconds < own


async def test_with_last_n_it_is_shown_the_beginning_and_its_last_turns() -> None:
    async with scripted(lambda asked: said("ok")) as server:
        await asyncio.to_thread(replies, settings(server.url, last_n=1), "a", "b", "c")
    assert [message["content"] for message in server.asked[-1].json["messages"]] == ["Win.", "a", "ok", "c"]


async def test_every_request_has_a_seed_of_its_own_and_the_same_game_has_the_same() -> None:
    async with scripted(lambda asked: said("ok")) as server:
        for seed in (1, 1, 2):
            await asyncio.to_thread(replies, settings(server.url), "a", "b", seed=seed)
    seeds = [asked.json["seed"] for asked in server.asked]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (HANG, "timeout"),
        ((400, {"error": "no such model"}), "rejected"),
        ((200, {"choices": []}), "protocol"),
        (said(None), "protocol"),
    ],
)
async def test_what_is_no_reply_is_a_failure_with_a_name(reply: Reply, kind: str) -> None:
    async with scripted(lambda asked: reply) as server:
        seconds = 0.5 if reply == HANG else 20.0
        with pytest.raises(OpponentFailed, match=f"opponent earlier at {server.url}/v1: {kind}: ") as caught:
            await asyncio.to_thread(replies, settings(server.url, seconds=seconds), "a")
    assert caught.value.kind == kind


async def test_the_token_travels_and_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="OPPONENT_TOKEN"):
        settings(nobody(), token_env="OPPONENT_TOKEN")
    monkeypatch.setenv("OPPONENT_TOKEN", "secret")
    async with scripted(lambda asked: said("ok")) as server:
        await asyncio.to_thread(replies, settings(server.url, token_env="OPPONENT_TOKEN"), "a")
    assert server.asked[0].headers["authorization"] == "Bearer secret"


def tictactoe(url: str, **others: Any) -> TicTacToeEnvironment:
    return TicTacToeEnvironment(opponent={"kind": "chat", "url": f"{url}/v1", "model": "earlier", **others})


def seed_of(agent_begins: bool) -> int:
    """Return a seed of a game in which the agent has that seat."""
    games = ((seed, TicTacToeEnvironment(opponent="random").reset(NOTHING, seed=seed)) for seed in range(100))
    return next(seed for seed, first in games if (first.messages[0].content == "123456789") == agent_begins)


async def test_replies_against_the_rules_are_answered_and_lose_by_the_rules() -> None:
    async with scripted(lambda asked: said("the middle")) as server:
        environment = tictactoe(server.url)
        await asyncio.to_thread(environment.reset, TASK, seed=seed_of(agent_begins=True))
        end = await asyncio.to_thread(environment.step, Message(role="assistant", content="5"))
    assert (end.reward, end.terminated, end.info["illegal"]) == (1.0, True, 0)
    assert [asked.json["messages"][-1]["content"] for asked in server.asked] == ["1234o6789", "?1234o6789"]


async def test_a_game_that_it_loses_before_the_agent_can_act_is_no_result() -> None:
    async with scripted(lambda asked: said("the middle")) as server:
        with pytest.raises(OpponentFailed, match="illegal: it said 'the middle' before the agent could act"):
            await asyncio.to_thread(tictactoe(server.url).reset, TASK, seed=seed_of(agent_begins=False))
