"""What is asked within an episode belongs to its span."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import numpy as np

from rlhf.controller.traced_episodes import TracedPlay
from rlhf.rollout.episode import PolicyClient
from rlhf.tracing import CurrentSpan, SpanIds, Traces, within
from rlhf.types import Failed, Prompt, Sampling, Task, Tool, Trajectory
from tests.fakes import TASK, FakeEngine, FakeRenderer


class Agent:
    """Asks the policy from the task of a server, as a program behind the endpoint does."""

    roles = ("agent",)
    tools: tuple[Tool, ...] = ()

    async def __call__(self, task: Task, policy: PolicyClient, seed: int) -> tuple[Trajectory | Failed, ...]:
        prompt = Prompt(token_ids=np.array([7], np.int32))
        asked = policy.engine.generate(prompt, sampling=policy.sampling, seed=seed, session=policy.session)
        await asyncio.create_task(asked, context=Context())
        return (Failed(kind="played", detail=""),)


async def test_a_reply_that_an_agent_asks_for_over_http_belongs_to_its_episode() -> None:
    ended: list[Any] = []
    policy = PolicyClient(
        engine=FakeEngine(), renderer=FakeRenderer(), sampling=Sampling(temperature=1.0, max_tokens=4),
        max_context_tokens=8, session="train-0-1", seed_of=lambda turn: turn,
    )  # fmt: skip
    with within(CurrentSpan(Traces(lambda *span: ended.append(span)), SpanIds(1, 2))):
        await TracedPlay(Agent())(TASK, policy, 3)
    (work, _, of_work, engine), (reply, its_ids, of_reply, _), (episode, ids, of_episode, _) = ended
    assert [work.name, reply.name, episode.name] == ["generate", "reply", "episode"]
    assert (of_work, of_reply, of_episode, engine) == (its_ids, ids, (1, 2), "fake")
    assert episode.attributes == {"task": "task", "session": "train-0-1"}
