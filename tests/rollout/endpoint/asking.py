"""An agent's requests to a session, without a socket, and what must be true of every episode."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf.rollout.endpoint.capture import Replied
from rlhf.rollout.endpoint.marks import AgentRequest
from rlhf.rollout.endpoint.sessions import AgentSession
from rlhf.rollout.endpoint.threads import trains_of
from rlhf.trainer.batching.batch import build_batch
from rlhf.types import MAIN_THREADS, Group, Message, Sample, Sampling, Scored, Ticket, TokenKind, Tool, Trajectory
from tests.rollout.playing import TASK, ScriptedEngine, policy


async def stays() -> None:
    """A client that waits for its answer."""
    await asyncio.Event().wait()


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


class Agent:
    """Asks one session, and remembers its conversation: `said` is what it would send next time."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *replies: str | Sequence[int], train: str = "main", **changes: object
    ) -> None:
        changes = {"sampling": Sampling(max_tokens=256)} | changes
        self.tokenizer = tokenizer
        ids = [tokenizer.encode(one, add_special_tokens=False) if isinstance(one, str) else one for one in replies]
        self.engine = ScriptedEngine(*ids, stop=tokenizer.eos_token_id)
        self.session = AgentSession(policy(self.engine, tokenizer, **changes), trains=trains_of(train))
        self.said: list[Message] = []
        self.replied: list[Replied] = []

    async def ask(self, *messages: Message, tools: tuple[Tool, ...] = (), **options: Any) -> Replied:
        """A request with exactly these messages."""
        asked = AgentRequest(messages=messages, tools=tools, reads_calls=bool(tools), **options)
        self.replied.append(await self.session.reply(asked, stays))
        return self.replied[-1]

    async def say(self, *messages: Message, **options: object) -> Replied:
        """A request that goes on with all that was said."""
        replied = await self.ask(*self.said, *messages, **options)
        self.said += [*messages, replied.message]
        return replied

    def played(self, reward: float | None = None) -> Trajectory:
        trajectory = self.session.trajectory(TASK, reward)
        check(trajectory, self.engine)
        self.check_messages(trajectory)
        return trajectory

    def check_messages(self, trajectory: Trajectory) -> None:
        """Every turn says which message of the conversation it is; a side call is none, and no message is two turns."""
        turns = [(segment, turn) for segment in trajectory.segments for turn in segment.turns]
        said = [turn.message for _, turn in turns if turn.message is not None]
        assert len(said) == len(set(said))
        for segment, turn in turns:
            assert (turn.message is not None) >= (segment.thread in MAIN_THREADS)
            assert turn.message is None or segment.thread not in ("side", "subagent")
            if turn.message is not None:
                message, tokens = trajectory.conversation[turn.message], segment.token_ids[turn.start : turn.stop]
                [sampled] = [one.completion for one in self.replied if one.message is message]
                assert tokens.tolist() == sampled.token_ids.tolist()

    def texts(self, trajectory: Trajectory) -> list[str]:
        return [self.tokenizer.decode(segment.token_ids) for segment in trajectory.segments]


def check(trajectory: Trajectory, engine: ScriptedEngine) -> None:
    """Every sampled token is sampled in one segment, after just what the engine was asked with, and trained if it is an
    ACTION."""
    left = [(tuple(asked), completion) for (asked, _, _, _), completion in zip(engine.asked, engine.said, strict=True)]
    for segment in trajectory.segments:
        acted = np.zeros(len(segment.token_ids), bool)
        for turn in segment.turns:
            before = tuple(segment.token_ids[: turn.start].tolist())
            found = next(
                pair for pair in left
                if pair[0] == before
                and pair[1].token_ids.tolist() == segment.token_ids[turn.start : turn.stop].tolist()
                and pair[1].versions.tolist() == segment.versions[turn.start : turn.stop].tolist()
            )  # fmt: skip
            assert segment.behaviour_logprobs[turn.start : turn.stop].tolist() == found[1].behaviour_logprobs.tolist()
            left.remove(found)
            acted[turn.start : turn.stop] = True
        assert (acted == segment.sampled_mask).all()
        assert (segment.behaviour_logprobs[~acted] == 0).all()
        assert (segment.versions[~acted] == -1).all()
    assert left == [], "a reply is in no segment"
    sample = Sample(trajectory=trajectory, score=Scored(value=0.0))
    batch = build_batch([Group(ticket=Ticket(ordinal=0, version=0), task=TASK, samples=(sample,))])
    trained = np.concatenate([sequence.token_ids[sequence.action_mask] for sequence in batch.sequences])
    sampled = Counter(
        pair
        for said in engine.said
        for pair in zip(said.token_ids.tolist(), said.behaviour_logprobs.tolist(), strict=True)
    )
    counted = Counter(zip(trained.tolist(), batch.behaviour_logprobs.tolist(), strict=True))
    assert counted <= sampled
    assert counted == sampled or any((one.kinds == TokenKind.UNTRAINED).any() for one in trajectory.segments)
    flags = [(turn.terminated, turn.truncated) for segment in trajectory.segments for turn in segment.turns]
    assert [any(flag) for flag in flags] == [False] * (len(flags) - 1) + [True], "the last turn alone is an end"
