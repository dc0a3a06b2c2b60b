"""Start and connect what the policy plays with: the recipe's environments with their turn limits, or its agent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial

from rlhf.cluster.worker import Cluster
from rlhf.config import load_piece
from rlhf.env.cassette import RecordedEnvironments, ReplayedEnvironments
from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.config import EnvironmentConfig
from rlhf.env.hosting.here import HostedEnvironments
from rlhf.env.hosting.isolation import START_SECONDS, Deadlines, Factory
from rlhf.env.hosting.kinds import isolation_of
from rlhf.env.server.worker import WorkerSettings
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.http.binding import token_from
from rlhf.http.config import check_cassette
from rlhf.http.listening import listening
from rlhf.protocols import Environments
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import ENVIRONMENT
from rlhf.rollout.agent import WithAgent
from rlhf.rollout.dry_run import dry_run
from rlhf.rollout.endpoint.app import policy_app, policy_uvicorn_config
from rlhf.rollout.endpoint.config import AgentConfig
from rlhf.rollout.endpoint.sessions import AgentSessions
from rlhf.rollout.episode import AnswerOnce, EpisodeRunner
from rlhf.rollout.programs import Programs
from rlhf.rollout.renderer import ChatRenderer
from rlhf.rollout.tool_calls import plain_text, tool_format
from rlhf.rollout.turns import TurnRules, WithEnvironment
from rlhf.types import EnvironmentSpec, Task, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """How episodes are played in training and in evaluation. Both have the same tools."""

    training: EpisodeRunner
    evaluation: EpisodeRunner

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.training.tools

    def play(self, purpose: str) -> EpisodeRunner:
        """The episode runner for that purpose: `train`, or any other."""
        return self.training if purpose == "train" else self.evaluation


@asynccontextmanager
async def started_surroundings(recipe: Recipe, cluster: Cluster) -> AsyncIterator[Surroundings]:
    """Start everything but engines that the recipe's episodes need. Raises `ConfigError`."""
    config, alone = recipe.environment, recipe.cluster.address is None
    async with AsyncExitStack() as stack:
        training: EpisodeRunner = AnswerOnce()
        if recipe.agent is not None:
            training = await stack.enter_async_context(started_endpoint(recipe.agent))
        elif config is not None:
            training = await stack.enter_async_context(started_play(config, cluster, alone=alone))
        evaluation = training
        if config is not None and config.eval_arguments:
            evaluation = await stack.enter_async_context(started_play(config.for_evaluation, cluster, alone=alone))
        if evaluation.tools != training.tools:
            raise ConfigError("environment.eval_arguments changes the tools, which are the same for a whole run")
        yield Surroundings(training=training, evaluation=evaluation)


@asynccontextmanager
async def started_play(config: EnvironmentConfig, cluster: Cluster, *, alone: bool) -> AsyncIterator[WithEnvironment]:
    """Start environments, with the limits of their turns. Raises `ConfigError`."""
    async with started_environments(config, cluster, alone=alone) as environments:
        yield WithEnvironment(environments=environments, rules=rules_of(config, environments.spec))


@asynccontextmanager
async def started_endpoint(config: AgentConfig) -> AsyncIterator[WithAgent]:
    """The recipe's agent, and the endpoint that it calls: on loopback, with a port and a token for this run only."""
    read = tool_format(config.tool_format, "agent.tool_format")
    sessions, token = AgentSessions(read=read, capacity=config.max_agents), secrets.token_urlsafe(24)
    async with listening(policy_uvicorn_config(policy_app(sessions, model="policy", token=token))) as url:
        yield WithAgent(
            program=partial(load_piece(config.program, "agent.program"), **config.arguments),
            url=url,
            token=token,
            sessions=sessions,
            timeout_seconds=config.timeout_seconds,
            places=asyncio.Semaphore(config.max_agents),
            programs=Programs(hung_limit=config.max_agents),
        )


def rules_of(config: EnvironmentConfig, spec: EnvironmentSpec) -> TurnRules:
    """The limits of the turns with this environment."""
    return TurnRules(
        environment=spec.name,
        max_turns=config.max_turns,
        timeout_seconds=config.episode_timeout_seconds,
        last_turns=config.last_n,
        read=tool_format(config.tool_format) if spec.tools else plain_text,
        roles=spec.roles,
    )


@asynccontextmanager
async def started_environments(
    config: EnvironmentConfig, cluster: Cluster, *, alone: bool
) -> AsyncIterator[Environments]:
    """The source of environments: the only place that makes them, and stops what they need. Raises `UserError`.

    With `alone` the whole cluster is on this machine.
    """
    if (cassette := config.cassette) is None:
        async with live_environments(config, cluster, alone=alone) as environments:
            yield environments
        return
    check_cassette(cassette)
    if config.is_replayed:
        yield ReplayedEnvironments(cassette.file)
        return
    async with live_environments(config, cluster, alone=alone) as environments:
        with closing(RecordedEnvironments(environments, cassette.file)) as recorded:
            yield recorded


@asynccontextmanager
async def live_environments(config: EnvironmentConfig, cluster: Cluster, *, alone: bool) -> AsyncIterator[Environments]:
    """Environments without recording. Raises `ConfigError`."""
    if config.urls:
        yield await joined_servers(config)
    elif config.servers:
        yield await started_servers(config, cluster, alone=alone)
    else:
        async with hosted_here(config) as environments:
            yield environments


async def joined_servers(config: EnvironmentConfig) -> Environments:
    """The servers that the recipe names, once all of them answer. Raises `ConfigError`."""
    token = token_from(config.token_env)
    return await connect_servers(
        [Address(url=url, token=token) for url in config.urls], config, "environment.urls names"
    )


async def started_servers(config: EnvironmentConfig, cluster: Cluster, *, alone: bool) -> Environments:
    """Servers in workers of the run's cluster, which end with it; access needs a token that only this run knows.

    Raises `ConfigError`, and `WorkerDied` for a server that does not start.
    """
    settings = WorkerSettings(
        factory=factory_of(config),
        isolation=config.isolation,
        deadlines=deadlines_of(config),
        max_sessions=config.sessions_per_server,
        token=secrets.token_hex(32),
    )
    workers = await cluster.spawn(ENVIRONMENT, lambda index: {"loopback": alone})
    seconds = START_SECONDS + config.start_timeout_seconds
    urls = await asyncio.gather(*(worker.call("start", settings, timeout_seconds=seconds) for worker in workers))
    addresses = [Address(url=url, token=settings.token) for url in urls]
    return await connect_servers(addresses, config, "environment.servers are of")


async def connect_servers(addresses: Sequence[Address], config: EnvironmentConfig, told: str) -> Environments:
    """Connect to servers, once all of them answer. Raises `ConfigError`, whose message begins with `told`."""
    try:
        return await EnvironmentPool.connect(addresses, Patience(deadlines=deadlines_of(config)))
    except EnvironmentFailed as error:
        raise ConfigError(f"{told} {config.shown}: {error.detail}") from error


@asynccontextmanager
async def hosted_here(config: EnvironmentConfig) -> AsyncIterator[Environments]:
    """The environment in threads of this process, or in separate processes. Raises `ConfigError`."""
    isolation = isolation_of(config.isolation, factory_of(config), deadlines_of(config), config.max_sessions)
    try:
        await isolation.start()
        yield HostedEnvironments(
            isolation, max_sessions=config.max_sessions, place_seconds=config.start_timeout_seconds
        )
    finally:
        await isolation.stop()


def factory_of(config: EnvironmentConfig) -> Factory:
    return Factory(name=str(config.environment), arguments=config.arguments, variables=config.variables)


def deadlines_of(config: EnvironmentConfig) -> Deadlines:
    return Deadlines(
        open_seconds=config.start_timeout_seconds,
        reset_seconds=config.turn_timeout_seconds,
        step_seconds=config.turn_timeout_seconds,
    )


async def opening_of(
    surroundings: Surroundings, recipe: Recipe, task: Task, renderer: ChatRenderer, max_context_tokens: int
) -> str | None:
    """The first episode's prompt, for inspection; None without an environment. Raises `ConfigError` when it leaves no
    room for a reply."""
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
