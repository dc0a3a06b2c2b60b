"""Sessions: each is one episode of an agent, from its opening until somebody ends it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import DeadlinePassed, ModelError, RlhfError
from rlhf.rollout.endpoint.capture import Capture, Replied, TokenizedRequest
from rlhf.rollout.endpoint.marks import AgentRequest
from rlhf.rollout.endpoint.refusal import ChatRefused
from rlhf.rollout.episode import PolicyClient
from rlhf.rollout.seeds import request_seed
from rlhf.rollout.tool_calls import ToolFormat
from rlhf.types import Completion, Prompt, Task, Timings, Trajectory

REMEMBERED_ENDS = 65_536
REPLYING_SHARE = 0.95
"""Of an episode's time: what is still being said then is cut off, and is kept before the time is over."""
SHORTEST_REPLY_SECONDS = 0.05


class ClientGone(RlhfError):
    """Whoever asked has left: the reply is dropped, and nobody reads this."""


class AgentSession:
    """An agent that asks `policy`. `failure` is what an engine raised and no reply came after: the agent hears of it as
    an answer only. A reply that is under way when the `seconds` of the episode are nearly over is cut off."""

    def __init__(self, policy: PolicyClient, read: ToolFormat, seconds: float | None = None) -> None:
        self.id = secrets.token_urlsafe(12)
        self.capture = Capture(policy.renderer, read)
        self.failure: RlhfError | None = None
        self._policy = policy
        self._numbers = itertools.count()
        self._began = self._used = time.monotonic()
        self._until = None if seconds is None else self._began + seconds * REPLYING_SHARE
        self._generating = 0.0
        self._under_way = 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def text(self, token_ids: NDArray[np.int32]) -> str:
        """Tokens with every mark."""
        return self._policy.renderer.whole_text(token_ids)

    @property
    def busy(self) -> bool:
        """Whether a reply is under way."""
        return self._under_way > 0

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self.busy else time.monotonic() - self._used

    async def reply(self, asked: AgentRequest, gone: Callable[[], Coroutine[Any, Any, None]]) -> Replied:
        """The policy's reply, unless whoever asked is `gone` before: then `ClientGone`.

        Raises `ChatRefused`: for a prompt without room, for an engine that failed, and when the session is ended.
        """
        question = self._question(asked)
        replying, leaving = asyncio.ensure_future(self._reply(question)), asyncio.ensure_future(gone())
        replying.add_done_callback(_heed)
        self._under_way += 1
        try:
            await asyncio.wait((replying, leaving, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                raise over(self.id)
            if replying.done():
                return replying.result()
            raise ClientGone(f"a client of session {self.id} left before it was answered")
        finally:
            replying.cancel()
            leaving.cancel()
            self.capture.drop(question)
            self._under_way -= 1
            self._used = time.monotonic()

    def end(self) -> None:
        """No more is asked; what is under way is given up."""
        if not self._ended.done():
            self._ended.set_result(None)

    def trajectory(self, task: Task, reward: float | None, *, ended: bool = True) -> Trajectory:
        """The episode of a session that was asked. `ended` is false for one that was given up."""
        elsewhere = max(0.0, time.monotonic() - self._began - self._generating)
        timings = Timings(generate_seconds=self._generating, environment_seconds=elsewhere)
        return self.capture.trajectory(task, reward, timings, ended=ended)

    def _question(self, asked: AgentRequest) -> TokenizedRequest:
        try:
            return self.capture.ask(asked)
        except ModelError as error:
            raise ChatRefused(400, "template", str(error), "messages") from error

    async def _reply(self, question: TokenizedRequest) -> Replied:
        completion = await self._generated(question)
        if self._ended.done():
            raise over(self.id)
        self.failure = None
        return self.capture.answer(question, completion)

    async def _generated(self, question: TokenizedRequest) -> Completion:
        began = time.monotonic()
        left = None if self._until is None else max(self._until - began, SHORTEST_REPLY_SECONDS)
        sampling = replace(self._policy.sampling, max_tokens=self._room(question), max_seconds=left)
        try:
            return await self._policy.engine.generate(
                Prompt(token_ids=question.token_ids),
                sampling=sampling,
                seed=self._seed(question.asked),
                session=self._policy.session,
            )
        except RlhfError as error:
            self.failure = error
            late = isinstance(error, DeadlinePassed)
            raise ChatRefused(504 if late else 500, "timeout" if late else "engine", str(error)) from error
        finally:
            self._generating += time.monotonic() - began

    def _seed(self, asked: AgentRequest) -> int:
        """Of its draws: that of the request, or the session's for its next one."""
        if asked.seed is None:
            return self._policy.seed_of(next(self._numbers))
        return request_seed(run_seed=asked.seed, purpose="asked", ordinal=0, sample=0, turn=0)

    def _room(self, question: TokenizedRequest) -> int:
        """Tokens that the reply may have. Raises `ChatRefused` where there is no room for one."""
        length, context = len(question.token_ids), self._policy.max_context_tokens
        if length >= context:
            why = f"the messages have {length} tokens, and the model's context is {context}"
            raise ChatRefused(400, "context_length_exceeded", why, "messages")
        wanted = question.asked.max_tokens or self._policy.sampling.max_tokens
        return min(wanted, self._policy.sampling.max_tokens, context - length)


class AgentSessions:
    """All sessions that are open, at most `capacity`, and the ids of those that have ended."""

    def __init__(self, *, read: ToolFormat, capacity: int) -> None:
        self._read, self._capacity = read, capacity
        self._open: dict[str, AgentSession] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AgentSession]:
        return iter(tuple(self._open.values()))

    @property
    def full(self) -> bool:
        return len(self._open) >= self._capacity

    def open(self, policy: PolicyClient, *, seconds: float | None = None) -> AgentSession:
        """A session of its own, for an episode that may take `seconds`. Raises `ChatRefused` where there is no
        place."""
        if self.full:
            raise ChatRefused(
                503, "capacity", f"{len(self._open)} sessions are open, which is all there may be; end some"
            )
        session = AgentSession(policy, self._read, seconds)
        self._open[session.id] = session
        return session

    def find(self, session_id: str) -> AgentSession:
        """The open session of that id. Raises `ChatRefused`: 404 where there was none, 409 where it has ended."""
        if found := self._open.get(session_id):
            return found
        if session_id in self._ended:
            raise over(session_id)
        raise ChatRefused(404, "unknown_session", f"there is no session {session_id!r:.40}; POST /sessions opens one")

    def close(self, session: AgentSession) -> None:
        """End it, and give its place back."""
        session.end()
        if self._open.pop(session.id, None):
            self._ended[session.id] = None
            if len(self._ended) > REMEMBERED_ENDS:
                self._ended.popitem(last=False)


def _heed(replying: asyncio.Future[Replied]) -> None:
    """Look at the exception of a reply that nobody may be waiting for any more: asyncio logs those that nobody saw."""
    if not replying.cancelled():
        replying.exception()


def over(session_id: str) -> ChatRefused:
    return ChatRefused(409, "session_ended", f"session {session_id} has ended; its episode is closed")
