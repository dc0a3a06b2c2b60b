"""What the policy plays with: the recipe's environments, joined to the rules of taking turns, or its agent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.config import EnvironmentConfig
from rlhf.env.hosting.here import HostedEnvironments
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.http.config import token_from
from rlhf.pieces import load_piece
from rlhf.protocols import Environments
from rlhf.recipe import Recipe
from rlhf.rollout.agent import WithAgent
from rlhf.rollout.dry_run import dry_run
from rlhf.rollout.endpoint.config import AgentConfig
from rlhf.rollout.endpoint.sessions import Sessions
from rlhf.rollout.episode import AnswerOnce, Play
from rlhf.rollout.renderer import ChatRenderer
from rlhf.rollout.tool_calls import plain, tool_format
from rlhf.rollout.turns import Rules, WithEnvironment
from rlhf.types import EnvironmentSpec, Task, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """How episodes are played, where that is training and where it is evaluation. Their tools are the same."""

    training: Play
    evaluation: Play

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.training.tools

    def play(self, purpose: str) -> Play:
        """How an episode of that purpose is played: `train`, or any other."""
        return self.training if purpose == "train" else self.evaluation


@asynccontextmanager
async def started_surroundings(recipe: Recipe) -> AsyncIterator[Surroundings]:
    """How the recipe's episodes are played, with all that it needs but engines. Raises `ConfigError`."""
    async with AsyncExitStack() as stack:
        if (agent := recipe.agent) is not None:
            training: Play = await stack.enter_async_context(started_endpoint(agent))
        elif (config := recipe.environment) is not None:
            training = await stack.enter_async_context(started_play(config))
            if config.eval_arguments:
                evaluation = await stack.enter_async_context(started_play(config.for_evaluation))
                if evaluation.tools != training.tools:
                    raise ConfigError("environment.eval_arguments changes the tools: they are the same for a whole run")
                yield Surroundings(training=training, evaluation=evaluation)
                return
        else:
            training = AnswerOnce()
        yield Surroundings(training=training, evaluation=training)


@asynccontextmanager
async def started_play(config: EnvironmentConfig) -> AsyncIterator[WithEnvironment]:
    """Environments, and the rules of taking turns with them. Raises `ConfigError`."""
    async with started_environments(config) as environments:
        yield WithEnvironment(environments=environments, rules=rules_of(config, environments.spec))


@asynccontextmanager
async def started_endpoint(config: AgentConfig) -> AsyncIterator[WithAgent]:
    """The recipe's agent, and the endpoint that it asks: on loopback, with a port and a token of this run alone."""
    from rlhf.rollout.endpoint.app import policy_app
    from rlhf.rollout.endpoint.listening import listening

    read = tool_format(config.tool_format, "agent.tool_format")
    sessions, token = Sessions(read=read, capacity=config.max_agents), secrets.token_urlsafe(24)
    async with listening(policy_app(sessions, model="policy", token=token)) as url:
        yield WithAgent(
            program=partial(load_piece(config.program, "agent.program"), **config.arguments),
            url=url,
            token=token,
            sessions=sessions,
            timeout_seconds=config.timeout_seconds,
            places=asyncio.Semaphore(config.max_agents),
        )


def rules_of(config: EnvironmentConfig, spec: EnvironmentSpec) -> Rules:
    """How turns are taken with this environment."""
    return Rules(
        environment=spec.name,
        max_turns=config.max_turns,
        timeout_seconds=config.episode_timeout_seconds,
        last_turns=config.last_n,
        read=tool_format(config.tool_format) if spec.tools else plain,
        roles=spec.roles,
    )


@asynccontextmanager
async def started_environments(config: EnvironmentConfig) -> AsyncIterator[Environments]:
    """Where environments come from: the one place that makes them, and ends what they need. Raises `ConfigError`."""
    environments = await (joined_servers(config) if config.urls else hosted_here(config, str(config.environment)))
    yield environments  # every session ends with its episode: nothing is left to end here


async def joined_servers(config: EnvironmentConfig) -> Environments:
    """The servers that the recipe names, as soon as all of them answer. Raises `ConfigError`."""
    token = token_from(config.token_env)
    patience = Patience(
        open_seconds=config.start_timeout_seconds,
        reset_seconds=config.turn_timeout_seconds,
        step_seconds=config.turn_timeout_seconds,
    )
    try:
        return await EnvironmentPool.connect([Address(url=url, token=token) for url in config.urls], patience)
    except EnvironmentFailed as error:
        raise ConfigError(f"environment.urls names {config.shown}: {error.detail}") from error


async def hosted_here(config: EnvironmentConfig, name: str) -> Environments:
    """The environment of that name in threads of this process. Raises `ConfigError`."""
    environments = HostedEnvironments(
        partial(load_piece(name, "environment.environment"), **config.arguments),
        name=name,
        turn_timeout_seconds=config.turn_timeout_seconds,
        start_timeout_seconds=config.start_timeout_seconds,
        max_sessions=config.max_sessions,
    )
    try:
        await environments.start()
    except EnvironmentFailed as error:
        raise ConfigError(
            f"environment.environment is {name}, which cannot be made with environment.arguments: {error.detail}"
        ) from error
    return environments


async def opening_of(
    surroundings: Surroundings, recipe: Recipe, task: Task, renderer: ChatRenderer, max_context_tokens: int
) -> str | None:
    """What the first episode will be asked, for a person; None without an environment. Raises `ConfigError` when that
    leaves no room for a reply."""
    play = surroundings.training
    if not isinstance(play, WithEnvironment):
        return None
    first = await dry_run(
        task,
        play.environments,
        renderer,
        run_seed=recipe.seed,
        timeout_seconds=play.rules.timeout_seconds,
    )
    if first.tokens >= max_context_tokens:
        raise ConfigError(
            f"what the environment asks has {first.tokens} tokens, and the context is {max_context_tokens}: there is "
            "no room for a reply; raise rollout.max_context_tokens"
        )
    return f"the first episode is asked ({first.tokens} tokens):\n{first.text}"
