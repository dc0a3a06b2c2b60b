"""Whatever an agent asks, in whatever order: every sampled token is trained once, as it was sampled, where it was."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.rollout.endpoint.capture import Replied
from rlhf.rollout.endpoint.marks import AgentRequest, message_marks
from rlhf.types import FinishReason, Message
from tests.models.templates import APPENDING, FORGETS_THINKING, tokenizer_with
from tests.rollout.endpoint.asking import Agent, assistant, user
from tests.rollout.playing import ADD
from tests.rollout.test_ids_survive import odd_reply

STEPS, EPISODES = 6, 12
Conversation = tuple[tuple[Message, ...], bool]
"""What was said, its last message a reply, and whether tools were offered."""


class Chaos:
    """An agent that goes on, goes back, asks again, rewrites and forgets, several times at once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chance: random.Random) -> None:
        replies = [odd_reply(chance, tokenizer) or [5] for _ in range(STEPS * 3)]
        self.agent, self.chance = Agent(tokenizer, *replies, train="all"), chance
        self.known: list[Conversation] = []
        self.ids: defaultdict[bytes, list[list[int]]] = defaultdict(list)
        self.asked = 0

    async def play(self) -> None:
        for _ in range(STEPS):
            wanted = [self.request() for _ in range(self.chance.choice([1, 1, 2, 3]))]
            if self.chance.random() < 0.3:
                wanted = [wanted[0]] * len(wanted)
            for conversation, replied in zip(wanted, await asyncio.gather(*map(self.send, wanted)), strict=True):
                self.learn(conversation, replied)

    def request(self) -> Conversation:
        """The next thing to ask: a new conversation, or something made of one that is known."""
        new = tuple(user(self.chance.choice("abc")) for _ in range(self.chance.choice([1, 1, 2])))
        if not self.known or self.chance.random() < 0.1:
            return new, self.chance.random() < 0.5
        messages, tools = self.chance.choice(self.known)
        how = self.chance.choice(["on", "on", "on", "again", "rewritten", "forgotten", "tools"])
        if how == "again":
            return messages[:-1], tools
        if how == "rewritten":
            return (*messages[:-1], assistant("never said"), *new), tools
        if how == "forgotten":
            return (*messages[-1:], *new), tools
        return (*messages, *new), tools != (how == "tools")

    async def send(self, conversation: Conversation) -> Replied:
        messages, tools = conversation
        limit = self.chance.choice([None, None, 3])
        return await self.agent.ask(*messages, tools=(ADD,) if tools else (), max_tokens=limit)

    def learn(self, conversation: Conversation, replied: Replied) -> None:
        messages, tools = conversation
        self.asked += 1
        said = (*messages, replied.message)
        self.known.append((said, tools))
        if replied.completion.finish_reason is FinishReason.STOP:
            ids = [*replied.token_ids.tolist(), *replied.completion.token_ids.tolist()]
            self.ids[message_marks(AgentRequest(messages=said, tools=(ADD,) if tools else ()))[-1]].append(ids)

    def sampled_before(self, conversation: Conversation, replied: Replied) -> bool:
        """Whether the prompt begins with the ids of the longest part that was said before, where there is one."""
        messages, tools = conversation
        marks = message_marks(AgentRequest(messages=messages, tools=(ADD,) if tools else ()))
        known = next((self.ids[mark] for mark in reversed(marks) if mark in self.ids), None)
        prompt = replied.token_ids.tolist()
        return known is None or any(prompt[: len(ids)] == ids for ids in known)


@pytest.mark.parametrize("template", [*APPENDING.values(), FORGETS_THINKING], ids=[*APPENDING, "forgets_thinking"])
async def test_every_sampled_token_is_an_action_once_with_what_the_engine_was_asked(template: str) -> None:
    tokenizer = tokenizer_with(template)
    segments = replies = 0
    for number in range(EPISODES):
        chaos = Chaos(tokenizer, random.Random(number))
        await chaos.play()
        trajectory = chaos.agent.played(1.0)
        segments, replies = segments + len(trajectory.segments), replies + chaos.asked
        assert sum(len(segment.turns) for segment in trajectory.segments) == chaos.asked
    assert segments > EPISODES
    assert segments == replies if template == FORGETS_THINKING else segments < replies, "only a user ever answers here"


@pytest.mark.parametrize("template", APPENDING.values(), ids=APPENDING)
async def test_what_was_said_before_is_never_encoded_again(template: str) -> None:
    tokenizer = tokenizer_with(template)
    for number in range(EPISODES):
        chaos = Chaos(tokenizer, random.Random(f"one by one {number}"))
        for _ in range(STEPS * 2):
            conversation = chaos.request()
            replied = await chaos.send(conversation)
            assert chaos.sampled_before(conversation, replied)
            chaos.learn(conversation, replied)
