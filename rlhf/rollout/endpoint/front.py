"""Episodes that clients open and end themselves: with a session, or by asking without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from rlhf.rollout.endpoint.marks import AgentRequest, message_marks
from rlhf.rollout.endpoint.sessions import AgentSession, AgentSessions
from rlhf.rollout.episode import PolicyClient
from rlhf.types import Task, Trajectory

SWEEPS_A_LEASE = 4


class EndSessionRequest(BaseModel):
    """How a client ends its session."""

    reward: float | None = Field(None, allow_inf_nan=False)


PolicyOf = Callable[[int], PolicyClient]
"""Who plays the n-th episode."""
Keep = Callable[[Trajectory, float | None], None]
"""Takes an episode that has ended, with its reward."""


class Front:
    """Opens sessions for whoever asks, and keeps the episode of each when it ends, or when nobody has used it for
    `lease_seconds`, or when it has to make place: then it is truncated, and has no reward. A session that was never
    answered leaves nothing."""

    def __init__(self, sessions: AgentSessions, policy_of: PolicyOf, keep: Keep, *, lease_seconds: float) -> None:
        self._sessions, self._policy_of, self._keep = sessions, policy_of, keep
        self._lease_seconds = lease_seconds
        self._opened = 0
        self._alone: set[AgentSession] = set()

    def open(self) -> AgentSession:
        """A session of the next number. Where there is no place, the conversation without a session that nobody has
        used for longest makes one: nobody will say when it is over. Raises `Refused` where there is none that rests."""
        resting = [session for session in self._alone if not session.busy]
        if self._sessions.full and resting:
            self.end(max(resting, key=lambda session: session.idle_seconds), None, ended=False)
        session = self._sessions.open(self._policy_of(self._opened))
        self._opened += 1
        return session

    def session_of(self, asked: AgentRequest) -> AgentSession:
        """The session whose conversation a request without one goes on with; else one of its own."""
        marks = message_marks(asked)
        found = next((session for session in self._alone if session.capture.goes_on(asked, marks)), None)
        if found is None:
            found = self.open()
            self._alone.add(found)
        return found

    def end(self, session: AgentSession, reward: float | None, *, ended: bool = True) -> dict[str, Any]:
        """Close it and keep its episode; what is told of it."""
        self._sessions.close(session)
        self._alone.discard(session)
        if not session.capture.replies:
            return {"replies": 0, "segments": 0, "tokens": 0}
        task = Task(id=session.id, messages=session.capture.first)
        trajectory = session.trajectory(task, reward, ended=ended)
        self._keep(trajectory, reward)
        segments, tokens = len(trajectory.segments), trajectory.action_tokens
        return {"replies": session.capture.replies, "segments": segments, "tokens": tokens}

    async def sweep(self) -> None:
        """End what nobody uses any more, for ever."""
        while True:
            await asyncio.sleep(self._lease_seconds / SWEEPS_A_LEASE)
            for session in self._sessions:
                if session.idle_seconds > self._lease_seconds:
                    self.end(session, None, ended=False)

    def close(self) -> None:
        """End all that is open."""
        for session in self._sessions:
            self.end(session, None, ended=False)
