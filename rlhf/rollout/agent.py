"""An episode that somebody else's agent drives: it asks the policy over OpenAI's API, and is captured as it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf.cluster.attempt import Raised
from rlhf.errors import DeadlinePassed, GenerateFailed
from rlhf.rollout.endpoint.sessions import AgentSession, AgentSessions
from rlhf.rollout.episode import AGENT, PolicyClient
from rlhf.rollout.programs import Late, NotStarted, Programs
from rlhf.types import Failed, Task, Tool, Trajectory, finite_number

AGENT_FAILURE = "agent_"
"""How kinds of failures begin that were an agent's."""
LONGEST_DETAIL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WithAgent:
    """A way to play: `program(task, base_url, api_key)` asks an endpoint at `url`, which serves `sessions` with
    `token`, and returns what the episode has earned, or None.

    One that does not end in time is cut off: its episode is truncated, with all that was said so far.
    `Failed("agent_raised")` says that it broke, `Failed("agent_timeout")` that it was given no reply in its time and
    `Failed("agent_silent")` that it ended without any, `Failed("agent_protocol")` that what it returned is no reward,
    `Failed("agent_refused")` that too many before it hang.
    """

    program: Callable[..., Any]
    url: str
    token: str
    sessions: AgentSessions
    timeout_seconds: float
    places: asyncio.Semaphore
    programs: Programs
    roles: tuple[str, ...] = field(default=(AGENT,), init=False)
    tools: tuple[Tool, ...] = field(default=(), init=False)  # the agent offers its own, request by request

    async def __call__(self, task: Task, policy: PolicyClient, seed: int) -> tuple[Trajectory | Failed, ...]:
        async with self.places:
            session = self.sessions.open(policy, seconds=self.timeout_seconds)
            try:
                base_url = f"{self.url}/sessions/{session.id}/v1"
                given = (task, base_url, self.token)
                returned = await self.programs.outcome_of(self.program, *given, seconds=self.timeout_seconds)
            finally:
                self.sessions.close(session)
        return (self._judged(task, session, returned),)

    def _judged(self, task: Task, session: AgentSession, returned: Any) -> Trajectory | Failed:
        """Raises what an engine raised, where that was the end of the agent, or is that of the run."""
        if isinstance(returned, NotStarted):
            return _failed("refused", task, "agent.max_agents agents were given up and have not come back: they hang")
        if isinstance(returned, Late) and session.capture.replies and session.failure is None:
            return replace(session.trajectory(task, None, ended=False), out_of_time=True)
        broke = isinstance(returned, (Raised, Late))
        if session.failure and (broke or not isinstance(session.failure, (GenerateFailed, DeadlinePassed))):
            raise session.failure
        if isinstance(returned, Late):
            return _failed(
                "timeout", task, f"the agent had no reply, and did not end within {self.timeout_seconds:g} s"
            )
        if isinstance(returned, Raised):
            return _failed("raised", task, f"{type(returned.error).__name__}: {returned.error}")
        if not session.capture.replies:
            return _failed("silent", task, "the agent has ended and was never given a reply")
        reward = finite_number(returned)
        if reward is None and returned is not None:
            return _failed("protocol", task, f"the agent returned {returned!r:.80}, which is no reward")
        return session.trajectory(task, reward)


def _failed(kind: str, task: Task, detail: str) -> Failed:
    return Failed(kind=f"{AGENT_FAILURE}{kind}", detail=f"task {task.id}: {detail}"[:LONGEST_DETAIL])
