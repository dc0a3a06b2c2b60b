"""Replies that never come: the client leaves, the session ends, the engine fails."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import openai
import pytest

from rlhf.errors import DeadlinePassed, GenerateFailed
from rlhf.rollout.endpoint.marks import AgentRequest
from rlhf.rollout.endpoint.sessions import AgentSession
from rlhf.types import Completion, EpisodeStatus, Prompt
from tests.rollout.endpoint.asking import stays, user
from tests.rollout.endpoint.serving import TOKENIZER, served
from tests.rollout.endpoint.test_app import GO, client, post
from tests.rollout.playing import ScriptedEngine, policy


class Slow(ScriptedEngine):
    """Answers when it is let."""

    def __init__(self, *replies: str) -> None:
        super().__init__(*(TOKENIZER.encode(reply) for reply in replies), stop=TOKENIZER.eos_token_id)
        self.let, self.given_up = asyncio.Event(), 0

    async def generate(self, prompt: Prompt, **how: Any) -> Completion:
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return await super().generate(prompt, **how)


async def test_a_reply_to_a_client_that_has_left_is_given_up_and_asked_for_again_without_a_trace() -> None:
    engine = Slow("one")
    async with served(engine) as server:
        opened = (await post(server.url, "/sessions")).json()
        impatient = client(opened["base_url"]).with_options(timeout=0.3)
        with pytest.raises(openai.APITimeoutError):
            await impatient.chat.completions.create(model="m", messages=[GO])
        async with asyncio.timeout(10):
            while not engine.given_up:
                await asyncio.sleep(0.02)
        engine.let.set()
        await client(opened["base_url"]).chat.completions.create(model="m", messages=[GO])
        told = (await post(server.url, f"/sessions/{opened['id']}/end")).json()
    assert (told["replies"], told["segments"]) == (1, 1)


async def test_the_end_of_a_session_gives_up_what_it_asks() -> None:
    engine = Slow("one")
    async with served(engine) as server:
        opened = (await post(server.url, "/sessions")).json()
        asking = asyncio.create_task(client(opened["base_url"]).chat.completions.create(model="m", messages=[GO]))
        async with asyncio.timeout(10):
            while not next(iter(server.sessions)).busy:
                await asyncio.sleep(0.02)
        await post(server.url, f"/sessions/{opened['id']}/end")
        with pytest.raises(openai.ConflictError, match="has ended"):
            await asking
    assert engine.given_up == 1


class Late(Slow):
    """Is told that nobody waits any more, and fails."""

    async def generate(self, prompt: Prompt, **how: Any) -> Completion:
        try:
            return await super().generate(prompt, **how)
        except asyncio.CancelledError:
            raise GenerateFailed("engine-0", "s", "was asked to stop") from None


async def test_an_engine_that_fails_when_nobody_waits_any_more_is_not_complained_of() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    engine = Late("one")
    session = AgentSession(policy(engine, TOKENIZER))
    asking = asyncio.create_task(session.reply(AgentRequest(messages=(user("go"),)), stays))
    while not session.busy:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait((asking,))
    del asking
    await asyncio.sleep(0.05)
    gc.collect()
    assert engine.given_up == 1
    assert complaints == []


async def test_a_conversation_that_is_asked_at_the_moment_makes_no_place() -> None:
    engine = Slow("one")
    async with served(engine, capacity=1) as server:
        asking = asyncio.create_task(post(server.url, "/v1/chat/completions", messages=[GO]))
        async with asyncio.timeout(10):
            while not len(server.sessions):
                await asyncio.sleep(0.02)
        assert (await post(server.url, "/sessions")).status_code == 503
        engine.let.set()
        assert (await asking).status_code == 200


class Broken(ScriptedEngine):
    def __init__(self, error: Exception) -> None:
        super().__init__(stop=TOKENIZER.eos_token_id)
        self.error = error

    async def generate(self, prompt: Prompt, **how: Any) -> Completion:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(GenerateFailed("engine-0", "s", "no room"), 500, "engine"), (DeadlinePassed("engine-0", 1.0), 504, "timeout")],
)
async def test_an_engine_that_fails_is_a_servers_error(error: Exception, status: int, code: str) -> None:
    async with served(Broken(error)) as server:
        answer = await post(server.url, "/v1/chat/completions", messages=[GO])
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


class Fails(ScriptedEngine):
    """Fails the requests of these numbers, and answers the others."""

    def __init__(self, *failing: int) -> None:
        super().__init__(*(TOKENIZER.encode("yes") for _ in range(9)), stop=TOKENIZER.eos_token_id)
        self.failing, self.requests = failing, 0

    async def generate(self, prompt: Prompt, **how: Any) -> Completion:
        self.requests += 1
        if self.requests in self.failing:
            raise GenerateFailed("engine-0", "s", f"request {self.requests} broke")
        return await super().generate(prompt, **how)


async def test_a_served_episode_that_lost_a_request_has_no_reward_and_says_why() -> None:
    async with served(Fails(2)) as server:
        session = (await post(server.url, "/sessions")).json()["id"]
        for text in ("one", "two", "three"):
            chat = f"/sessions/{session}/v1/chat/completions"
            await post(server.url, chat, messages=[{"role": "user", "content": text}])
        told = (await post(server.url, f"/sessions/{session}/end", reward=1.0)).json()
    assert "request 2 broke" in told["lost"]
    [(trajectory, reward)] = server.kept
    assert (reward, trajectory.status) == (None, EpisodeStatus.TRUNCATED)
