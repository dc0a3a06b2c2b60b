"""Episodes driven by an agent program: it calls the policy over OpenAI's API, and every request is captured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf.errors import Raised, logged_error
from rlhf.rollout.endpoint.sessions import AgentSession, AgentSessions
from rlhf.rollout.episode import AGENT, PolicyClient
from rlhf.rollout.programs import NoOutcome, Programs
from rlhf.rollout.turns import REWARDS
from rlhf.tracing import CURRENT
from rlhf.types import Failed, Task, Tool, Trajectory, finite_number, with_own_row
from rlhf.untrusted_text import escape_to_line

AGENT_FAILURE = "agent_"
"""Prefix of the failure kinds that an agent caused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithAgent:
    """Episode runner for an agent program: `program(task, base_url, api_key)` calls an endpoint at `url`, which
    serves `sessions` with `token`, and returns the episode's reward, None, or what is known at the end: a mapping
    with the `reward`, which becomes the `env_info`. A program that exceeds its timeout is cut off: its episode is
    truncated and keeps all turns so far. An agent with several `roles` names one as the model of each request;
    where `rewards` are known at the end, each role gets its own. Failures are of kind `agent_raised`,
    `agent_timeout` and `agent_silent` (no reply), `agent_protocol` (the returned value is not a reward), and
    `agent_refused` (not started, because too many earlier programs hang). Raises the engine's error where a request
    failed and was not answered later, whatever the program returned."""

    program: Callable[..., Any]
    url: str
    token: str
    sessions: AgentSessions
    timeout_seconds: float
    places: asyncio.Semaphore
    programs: Programs
    roles: tuple[str, ...] = (AGENT,)
    tools: tuple[Tool, ...] = field(default=(), init=False)  # the agent declares its tools in each request

    async def __call__(self, task: Task, policy: PolicyClient, seed: int) -> tuple[Trajectory | Failed, ...]:
        async with self.places:
            session = self.sessions.open(policy, seconds=self.timeout_seconds, episode=CURRENT.get(), roles=self.roles)
            try:
                base_url = f"{self.url}/sessions/{session.id}/v1"
                given = (with_own_row(task), base_url, self.token)
                returned = await self.programs.outcome_of(self.program, *given, seconds=self.timeout_seconds)
            finally:
                self.sessions.close(session)
        played = list(session.of.values()) or [session]
        if returned is not NoOutcome.NOT_STARTED:
            for failure in filter(None, (one.failure for one in played)):
                raise failure
        acted = any(one.capture.replies for one in played)
        return tuple(
            self._outcome(task, one, returned)
            if one.capture.replies or not acted
            else Failed(kind="never_acted", detail=f"task {task.id}: the agent asked no model named {one.role}")
            for one in played
        )

    def _outcome(self, task: Task, session: AgentSession, returned: Any) -> Trajectory | Failed:
        """Return the outcome of a role."""
        if returned is NoOutcome.NOT_STARTED:
            return _failed("refused", task, "agent.max_agents programs exceeded their timeouts and still hang")
        if returned is NoOutcome.LATE and session.capture.replies:
            return replace(session.trajectory(task, None, ended=False), out_of_time=True)
        if returned is NoOutcome.LATE:
            return _failed(
                "timeout", task, f"the agent received no reply and did not end within {self.timeout_seconds:g} s"
            )
        if isinstance(returned, Raised):
            return _failed("raised", task, logged_error(returned.error))
        info = (returned,) if isinstance(returned, Mapping) else ()
        if not session.capture.replies:
            known = info[0] if info else {}
            said = f"; its last output: {escape_to_line(known['output'])[-300:]}" if known.get("output") else ""
            if status := known.get("exit_status"):
                return _failed("raised", task, f"the agent exited with status {status} without a reply{said}")
            return _failed("silent", task, f"the agent ended without receiving a reply{said}")
        given = returned.get("reward") if info else returned
        if info and isinstance(by_role := info[0].get(REWARDS), Mapping):
            given = by_role.get(session.role, given)
        reward = finite_number(given)
        if reward is None and given is not None:
            return _failed("protocol", task, f"the agent returned {returned!r:.80}, not a reward")
        return replace(session.trajectory(task, reward), env_info=info)


def _failed(kind: str, task: Task, detail: str) -> Failed:
    return Failed(kind=f"{AGENT_FAILURE}{kind}", detail=f"task {task.id}: {detail}")
