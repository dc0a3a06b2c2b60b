"""The endpoint on a real socket, with an engine that says what it is told to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase

from rlhf.chat.tool_calls import hermes
from rlhf.http.serving import listening
from rlhf.models.tiny import byte_tokenizer
from rlhf.protocols import RolloutEngine
from rlhf.rollout.agent_config import ClientStop
from rlhf.rollout.endpoint.app import policy_app, policy_uvicorn_config
from rlhf.rollout.endpoint.front import Front
from rlhf.rollout.endpoint.sessions import AgentSessions
from rlhf.rollout.episode import PolicyClient
from rlhf.types import Sampling, Trajectory
from tests.rollout.playing import ScriptedEngine, policy

TOKENIZER = byte_tokenizer()


def scripted(*replies: str, tokenizer: PreTrainedTokenizerBase = TOKENIZER) -> ScriptedEngine:
    ids = [tokenizer.encode(reply, add_special_tokens=False) for reply in replies]
    return ScriptedEngine(*ids, stop=tokenizer.eos_token_id)


@dataclass
class Served:
    """A server: its address, its sessions, and the episodes that ended."""

    url: str
    sessions: AgentSessions
    front: Front
    kept: list[tuple[Trajectory, float | None]] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)


@contextlib.asynccontextmanager
async def served(
    engine: RolloutEngine,
    *,
    token: str | None = None,
    capacity: int = 8,
    lease_seconds: float = 60.0,
    max_tokens: int = 256,
    context: int = 2048,
    client_stop: ClientStop = "refuse",
    structured: bool = False,
) -> AsyncIterator[Served]:
    def policy_of(number: int) -> PolicyClient:
        sampling = Sampling(max_tokens=max_tokens)
        known = policy(engine, TOKENIZER, sampling=sampling, max_context_tokens=context)  # type: ignore[arg-type]
        return replace(known, renderer=known.renderer.reading(hermes)) if structured else known

    kept: list[tuple[Trajectory, float | None]] = []
    sessions = AgentSessions(capacity=capacity, client_stop=client_stop, structured=structured)
    groups: list[str | None] = []

    def keep(trajectory: Trajectory, reward: float | None, group: str | None) -> None:
        kept.append((trajectory, reward))
        groups.append(group)

    front = Front(sessions, policy_of, keep, lease_seconds=lease_seconds)
    async with listening(policy_uvicorn_config(policy_app(sessions, model="tiny", token=token, front=front))) as url:
        yield Served(url, sessions, front, kept, groups)
