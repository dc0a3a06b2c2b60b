"""Sessions for external clients: opened and ended by the client, or created for requests without a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rlhf.rollout.endpoint.marks import AgentRequest, message_marks
from rlhf.rollout.endpoint.sessions import AgentSession, AgentSessions, unknown_answer
from rlhf.rollout.episode import PolicyClient
from rlhf.types import Task, Trajectory

SWEEPS_A_LEASE = 4
AGENT_HEADERS = ("session-id", "x-claude-code-session-id", "x-session-id")
"""In these Codex, Claude Code and opencode name their own session: its requests are one episode."""


class OpenSessionRequest(BaseModel):
    """What a client says of the episode when it opens its session. Episodes of a `group` are compared with one another;
    without one, those of a `task`."""

    model_config = ConfigDict(extra="forbid")

    task: str | None = Field(None, min_length=1, max_length=200)
    group: str | None = Field(None, min_length=1, max_length=200)
    role: str | None = Field(None, min_length=1, max_length=200)


UNNAMED = OpenSessionRequest()


class EndSessionRequest(BaseModel):
    """The body with which a client ends its session. A misspelt `reward` would be an episode without one."""

    model_config = ConfigDict(extra="forbid")

    reward: float | None = Field(None, allow_inf_nan=False)


PolicyOf = Callable[[int], PolicyClient]
"""The policy client of the n-th episode."""
KeepTrajectory = Callable[[Trajectory, float | None, str | None], None]
"""Receives an ended episode with its reward and the name of its group."""


class Front:
    """Opens sessions for clients, and saves each session's episode when it ends, if it has a reply. One that is unused
    for `lease_seconds`, or evicted for a new one, is saved as truncated, without a reward."""

    def __init__(
        self, sessions: AgentSessions, policy_of: PolicyOf, keep: KeepTrajectory, *, lease_seconds: float
    ) -> None:
        self._sessions, self._policy_of, self._keep = sessions, policy_of, keep
        self._lease_seconds = lease_seconds
        self._opened = 0
        self._alone: set[AgentSession] = set()
        self._agents: dict[str, AgentSession] = {}
        self._named: dict[AgentSession, OpenSessionRequest] = {}

    def open(self, named: OpenSessionRequest = UNNAMED) -> AgentSession:
        """Return a new session with the next number. When the server is full, the least recently used conversation
        without a session is evicted: no client will end it. Raises `ChatRefused` where none is idle."""
        resting = [session for session in self._alone if not session.busy]
        if self._sessions.full and resting:
            self.end(max(resting, key=lambda session: session.idle_seconds), None, ended=False)
        session = self._sessions.open(self._policy_of(self._opened))
        self._opened += 1
        self._named[session] = named
        return session

    def session_of(
        self, asked: AgentRequest, headers: Mapping[str, str], follows: str | None = None, *, counting: bool = False
    ) -> AgentSession:
        """Return the session of a request that names none: that of its agent's own session, by `headers`, of the answer
        that it `follows`, or of the conversation that it continues; else a new one, which for `counting` is of no
        episode."""
        key = next((headers[name][:200] for name in AGENT_HEADERS if headers.get(name)), None)
        if key is not None:
            found = self._agents.get(key)
        elif follows is not None:
            found = next((session for session in self._alone if follows in session.answers), None)
            if found is None:
                raise unknown_answer(follows)
        else:
            marks = message_marks(asked)
            found = next((session for session in self._alone if session.capture.goes_on(asked, marks)), None)
        if found is None and counting:
            return AgentSession(self._policy_of(self._opened))
        if found is None:
            found = self.open()
            self._alone.add(found)
            if key is not None:
                self._agents[key] = found
        return found

    def end(self, session: AgentSession, reward: float | None, *, ended: bool = True) -> dict[str, Any]:
        """Close the session and save its episode; returns the response for the client. An episode that lost a request
        to an engine error has no reward: its client continued without a reply."""
        self._sessions.close(session)
        self._alone.discard(session)
        self._agents = {key: one for key, one in self._agents.items() if one is not session}
        named = self._named.pop(session)
        if not session.capture.replies:
            return {"replies": 0, "segments": 0, "tokens": 0}
        task = Task(id=named.task or session.id, messages=session.capture.first)
        lost = {"lost": str(session.failure)} if session.failure else {}
        reward, ended = (None, False) if lost else (reward, ended)
        trajectory = session.trajectory(task, reward, ended=ended)
        self._keep(replace(trajectory, role=named.role or trajectory.role), reward, named.group or named.task)
        segments, tokens = len(trajectory.segments), trajectory.action_tokens
        return {"replies": session.capture.replies, "segments": segments, "tokens": tokens} | lost

    async def sweep(self) -> None:
        """End sessions whose lease has expired; runs forever."""
        while True:
            await asyncio.sleep(self._lease_seconds / SWEEPS_A_LEASE)
            for session in self._sessions:
                if session.idle_seconds > self._lease_seconds:
                    self.end(session, None, ended=False)

    def close(self) -> None:
        for session in self._sessions:
            self.end(session, None, ended=False)
