"""What the policy plays with: the recipe's environments, made and joined to the rules of taking turns."""

from __future__ import annotations

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
from rlhf.rollout.dry_run import dry_run
from rlhf.rollout.renderer import ChatRenderer
from rlhf.rollout.tool_calls import plain, tool_format
from rlhf.rollout.turns import Rules, WithEnvironment
from rlhf.types import EnvironmentSpec, Task, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What episodes are played with, where that is training and where it is evaluation. Their tools are the same."""

    training: WithEnvironment
    evaluation: WithEnvironment

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.training.environments.spec.tools


@asynccontextmanager
async def started_surroundings(recipe: Recipe) -> AsyncIterator[Surroundings | None]:
    """The recipe's environments, and the rules of taking turns with them. Raises `ConfigError`."""
    config = recipe.environment
    if config is None:
        yield None
        return
    async with AsyncExitStack() as stack:
        training = evaluation = await stack.enter_async_context(started_environments(config))
        if config.eval_arguments:
            evaluation = await stack.enter_async_context(started_environments(config.for_evaluation))
        if evaluation.spec.tools != training.spec.tools:
            raise ConfigError("environment.eval_arguments changes the tools, which are the same for a whole run")
        plays = [
            WithEnvironment(environments=environments, rules=rules_of(config, environments.spec))
            for environments in (training, evaluation)
        ]
        yield Surroundings(training=plays[0], evaluation=plays[1])


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
) -> str:
    """What the first episode will be asked, for a person. Raises `ConfigError` when that leaves no room for a reply."""
    first = await dry_run(
        task,
        surroundings.training.environments,
        renderer,
        run_seed=recipe.seed,
        timeout_seconds=surroundings.training.rules.timeout_seconds,
    )
    if first.tokens >= max_context_tokens:
        raise ConfigError(
            f"what the environment asks has {first.tokens} tokens, and the context is {max_context_tokens}: there is "
            "no room for a reply; raise rollout.max_context_tokens"
        )
    return f"the first episode is asked ({first.tokens} tokens):\n{first.text}"
