"""Sessions of the endpoint: each one is one episode of an agent, from opening to ending."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.tool_calls import ToolFormat
from rlhf.errors import DeadlinePassed, GenerateFailed, ModelError, RlhfError
from rlhf.rollout.agent_config import ClientStop
from rlhf.rollout.endpoint.capture import Capture, Replied, TokenizedRequest
from rlhf.rollout.endpoint.marks import AgentRequest, Mark
from rlhf.rollout.endpoint.threads import TRAINS_MAIN, Trains
from rlhf.rollout.episode import AGENT, PolicyClient
from rlhf.rollout.seeds import request_seed
from rlhf.tracing import CurrentSpan, within
from rlhf.types import Message, Task, Timings, Tool, Trajectory

REMEMBERED_ENDS = 65_536
REPLYING_SHARE = 0.95
"""Share of an episode's time after which a running reply is cut off, to record it before the episode's timeout."""
SHORTEST_REPLY_SECONDS = 0.05


class ChatRefused(RlhfError):
    """A request answered with an error: its `status`, one word as `code`, and the parameter `param` at fault."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    def as_json(self) -> dict[str, object]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        message = self.message.encode(errors="replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


class ClientGone(RlhfError):
    """The client disconnected: its reply is dropped, and this error reaches no client."""


class AgentSession:
    """An agent's session with `policy`. A running reply is cut off when the episode's `seconds` are nearly used up. The
    spans of replies belong to `episode`: requests come from elsewhere. `trains` says which replies are trained. `of`
    has the sessions of all roles of an agent with several, whose requests name theirs as the model."""

    def __init__(
        self,
        policy: PolicyClient,
        seconds: float | None = None,
        episode: CurrentSpan | None = None,
        trains: Trains = TRAINS_MAIN,
        role: str = AGENT,
    ) -> None:
        self.id, self.role, self.of = secrets.token_urlsafe(12), role, dict[str, AgentSession]()
        self.capture = Capture(policy.renderer, trains)
        self.answers: dict[str, tuple[tuple[Message, ...], tuple[Tool, ...]]] = {}
        """The conversation up to each answer, and the tools offered, by its id."""
        self._failures: dict[Mark, RlhfError] = {}
        self._policy, self._episode = policy, episode
        self._numbers = itertools.count()
        self._began = self._used = time.monotonic()
        self._until = None if seconds is None else self._began + seconds * REPLYING_SHARE
        self._generating = 0.0
        self._under_way = 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def text(self, token_ids: NDArray[np.int32]) -> str:
        return self._policy.renderer.whole_text(token_ids)

    @property
    def tool_format(self) -> ToolFormat:
        return self._policy.renderer.read

    @property
    def failure(self) -> RlhfError | None:
        """The first engine error of a request that was not answered later, when the agent asked again."""
        return next(iter(self._failures.values()), None)

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request ended; 0 while a reply is being generated."""
        return 0.0 if self.busy else time.monotonic() - self._used

    async def reply(self, asked: AgentRequest, gone: Callable[[], Coroutine[Any, Any, None]]) -> Replied:
        """Return the policy's reply. Raises `ClientGone` where the client is `gone` before, and `ChatRefused`: by the
        template, for a prompt that leaves no room, a failed engine, and a session that has ended."""
        question = self._asked(asked)
        replying, leaving = asyncio.ensure_future(self._reply(question)), asyncio.ensure_future(gone())
        replying.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may have no waiter left
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

    def prompt_tokens(self, asked: AgentRequest) -> int:
        """Return the length of a request's prompt. Raises `ChatRefused` where the template refuses it."""
        question = self._asked(asked)
        self.capture.drop(question)
        return len(question.prompt.token_ids)

    def _asked(self, asked: AgentRequest) -> TokenizedRequest:
        try:
            return self.capture.ask(asked)
        except ModelError as error:
            raise ChatRefused(400, "template", str(error), "messages" if asked.prompt is None else "prompt") from error

    def of_model(self, name: str) -> AgentSession:
        """Return the session of a request that names this model. Raises `ChatRefused`."""
        if self.of and name not in self.of:
            why = f"{name!r:.80} is none of this agent's models, which are {', '.join(self.of)}"
            raise ChatRefused(404, "model_not_found", why, "model")
        return self.of.get(name, self)

    def end(self) -> None:
        for one in {self, *self.of.values()}:
            if not one._ended.done():
                one._ended.set_result(None)

    def trajectory(self, task: Task, reward: float | None, *, ended: bool = True) -> Trajectory:
        """Return the episode of a session with at least one reply. `ended` is false for one that was given up."""
        elsewhere = max(0.0, time.monotonic() - self._began - self._generating)
        timings = Timings(generate_seconds=self._generating, environment_seconds=elsewhere)
        played = self.capture.trajectory(task, reward, timings, ended=ended)
        return replace(played, role=self.role, policy=self._policy.policy_of(self.role))

    async def _reply(self, question: TokenizedRequest) -> Replied:
        """Generate the reply. Raises `ChatRefused`, also where the context has no room for one."""
        asked, began = question.asked, time.monotonic()
        length, context = len(question.prompt.token_ids), self._policy.max_context_tokens
        most = self._policy.sampling.max_tokens
        wanted = min(asked.max_tokens or most, most)
        if length >= context:
            # OpenAI's wording: agents and their libraries recognise the error by it.
            place = "messages" if asked.prompt is None else "prompt"
            why = (
                f"This model's maximum context length is {context} tokens. However, you requested {length + wanted} "
                f"tokens ({length} in the {place}, {wanted} in the completion). Please reduce the length of the "
                f"{place} or completion."
            )
            raise ChatRefused(400, "context_length_exceeded", why, place)
        if asked.seed is None:
            seed = self._policy.seed_of(next(self._numbers))
        else:
            seed = request_seed(run_seed=asked.seed, purpose="asked", ordinal=0, sample=0, turn=0)
        left = None if self._until is None else max(self._until - began, SHORTEST_REPLY_SECONDS)
        try:
            with within(self._episode):
                completion = await self._policy.engine.generate(
                    replace(question.prompt, policy=self._policy.policy_of(self.role)),
                    sampling=replace(
                        self._policy.sampling,
                        max_tokens=min(wanted, context - length),
                        max_seconds=left,
                        structure=asked.structure,
                    ),
                    seed=seed,
                    session=self._policy.session,
                )
        except RlhfError as error:
            if asked.structure and isinstance(error, GenerateFailed):
                raise ChatRefused(400, "structured_output", str(error)) from error
            self._failures[question.mark] = error
            late = isinstance(error, DeadlinePassed)
            raise ChatRefused(504 if late else 500, "timeout" if late else "engine", str(error)) from error
        finally:
            self._generating += time.monotonic() - began
        if self._ended.done():
            raise over(self.id)
        self._failures.pop(question.mark, None)
        return self.capture.answer(question, completion)


class AgentSessions:
    """All open sessions, at most `capacity`, and the ids of ended ones. `client_stop` is for stop texts; `structured`:
    whether replies are held to the grammar that a request asks for; `trains`: which are trained."""

    def __init__(
        self,
        *,
        capacity: int,
        client_stop: ClientStop = "cut",
        structured: bool = False,
        trains: Trains = TRAINS_MAIN,
    ) -> None:
        self._capacity, self.client_stop, self.structured, self._trains = capacity, client_stop, structured, trains
        self._open: dict[str, AgentSession] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AgentSession]:
        return iter(tuple(self._open.values()))

    @property
    def full(self) -> bool:
        return len(self._open) >= self._capacity

    def open(
        self,
        policy: PolicyClient,
        *,
        seconds: float | None = None,
        episode: CurrentSpan | None = None,
        roles: Sequence[str] = (AGENT,),
    ) -> AgentSession:
        """Open a session, for an episode that may take `seconds`. Raises `ChatRefused` at `capacity`."""
        if self.full:
            raise ChatRefused(503, "capacity", f"{len(self._open)} sessions are open, the maximum; end one first")
        session, *others = (AgentSession(policy, seconds, episode, self._trains, role) for role in roles)
        if others:
            session.of = {one.role: one for one in (session, *others)}
            for one in others:
                one._numbers = session._numbers  # no two of its requests have the same draws
        self._open[session.id] = session
        return session

    def find(self, session_id: str) -> AgentSession:
        """Return the open session with that id. Raises `ChatRefused`: 404 for an unknown one, 409 if it has ended."""
        if found := self._open.get(session_id):
            return found
        if session_id in self._ended:
            raise over(session_id)
        raise ChatRefused(
            404, "unknown_session", f"session {session_id!r:.40} does not exist; POST /sessions opens one"
        )

    def close(self, session: AgentSession) -> None:
        session.end()
        if self._open.pop(session.id, None):
            self._ended[session.id] = None
            if len(self._ended) > REMEMBERED_ENDS:
                self._ended.popitem(last=False)


def over(session_id: str) -> ChatRefused:
    return ChatRefused(409, "session_ended", f"session {session_id} has ended; its episode is closed")


def unknown_answer(answer_id: str) -> ChatRefused:
    why = f"{answer_id!r:.80} is no response of an open session; send the whole input instead"
    return ChatRefused(400, "previous_response_not_found", why, "previous_response_id")
