"""Start and connect the recipe's environments with their turn limits, or its agent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rlhf.cluster.worker import Cluster
from rlhf.data.tasks import Tell
from rlhf.env.config import EnvironmentConfig
from rlhf.env.starting import started_environments
from rlhf.errors import ConfigError
from rlhf.http.serving import listening
from rlhf.rollout.agent import WithAgent
from rlhf.rollout.agent_command import agent_program
from rlhf.rollout.agent_config import AgentConfig
from rlhf.rollout.endpoint.app import policy_app, policy_uvicorn_config
from rlhf.rollout.endpoint.sessions import AgentSessions
from rlhf.rollout.endpoint.threads import trains_of
from rlhf.rollout.episode import AGENT, AnswerOnce, EpisodeRunner
from rlhf.rollout.programs import Programs
from rlhf.rollout.turns import TurnRules, WithEnvironment
from rlhf.types import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """How episodes are played in training and in evaluation. Both have the same tools."""

    training: EpisodeRunner
    evaluation: EpisodeRunner

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.training.tools

    def play(self, purpose: str) -> EpisodeRunner:
        """Return the episode runner for that purpose: `train`, or any other."""
        return self.training if purpose == "train" else self.evaluation


@asynccontextmanager
async def started_surroundings(
    config: EnvironmentConfig | None,
    agent: AgentConfig | None,
    cluster: Cluster,
    tell: Tell,
    *,
    alone: bool,
    structured: bool,
    logs: Path,
) -> AsyncIterator[Surroundings]:
    """Start the environment or agent that the recipe's episodes need, if any. With `alone` the whole cluster is on this
    machine; `structured`: engines hold replies to a grammar. `logs` is the run's folder of logs; `tell` receives
    messages about servers. Raises `ConfigError`."""
    async with AsyncExitStack() as stack:
        training: EpisodeRunner = AnswerOnce()
        if agent is not None:
            training = await stack.enter_async_context(
                started_endpoint(agent, structured=structured, log=logs / "agents.log")
            )
        elif config is not None:
            training = await stack.enter_async_context(started_play(config, cluster, tell, alone=alone))
        evaluation = training
        if config is not None and config.eval_arguments:
            evaluation = await stack.enter_async_context(
                started_play(config.for_evaluation, cluster, tell, alone=alone)
            )
        if evaluation.tools != training.tools:
            raise ConfigError("environment.eval_arguments changes the tools, which must be the same for a whole run")
        yield Surroundings(training=training, evaluation=evaluation)


@asynccontextmanager
async def started_play(
    config: EnvironmentConfig, cluster: Cluster, tell: Tell, *, alone: bool
) -> AsyncIterator[WithEnvironment]:
    """Start environments, with the limits of their turns. Raises `ConfigError`."""
    async with started_environments(config, cluster, alone=alone, tell=tell) as environments:
        rules = TurnRules(
            environment=environments.spec.name,
            max_turns=config.max_turns,
            timeout_seconds=config.episode_timeout_seconds,
            last_turns=config.last_n,
            roles=environments.spec.roles,
        )
        yield WithEnvironment(environments=environments, rules=rules)


@asynccontextmanager
async def started_endpoint(
    config: AgentConfig, *, structured: bool, log: Path | None = None
) -> AsyncIterator[WithAgent]:
    """Serve the endpoint that the recipe's agent calls: on loopback, with a port and a token for this run only. A
    command's output goes to `log`."""
    sessions = AgentSessions(
        capacity=config.max_agents,
        client_stop=config.client_stop,
        structured=structured,
        trains=trains_of(config.train),
    )
    token = secrets.token_urlsafe(24)
    async with listening(policy_uvicorn_config(policy_app(sessions, model="policy", token=token))) as url:
        yield WithAgent(
            program=agent_program(config, log),
            url=url,
            token=token,
            sessions=sessions,
            timeout_seconds=config.timeout_seconds,
            places=asyncio.Semaphore(config.max_agents),
            programs=Programs(hung_limit=config.max_agents),
            roles=config.models or (AGENT,),
        )
