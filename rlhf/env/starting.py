"""Start environments as their config says: in this process, on servers that the run starts, or on existing servers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from typing import Never

from rlhf.cluster.restarts import Restarts
from rlhf.cluster.worker import Cluster, Worker, WorkerHandle
from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.config import ENVIRONMENT, EnvironmentConfig
from rlhf.env.encoding import dumps
from rlhf.env.hosting.hosted import HostedEnvironments, isolation_of
from rlhf.env.hosting.isolation import START_SECONDS, Deadlines, Factory
from rlhf.env.recording import RecordedEnvironments, ReplayedEnvironments
from rlhf.env.server.app import EnvironmentServerSettings, limits_for_sessions
from rlhf.env.server.worker import EnvironmentServer
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.http.binding import Access, token_from
from rlhf.http.recording import Replay, open_recording
from rlhf.protocols import Environments


@asynccontextmanager
async def started_environments(
    config: EnvironmentConfig, cluster: Cluster, *, alone: bool, tell: Callable[[str], None] = lambda words: None
) -> AsyncIterator[Environments]:
    """Yield the environments of a run; at the end, stop what they need. Raises `UserError`. With `alone` the whole
    cluster is on this machine. `tell` receives a line when a server is gone and when it is back."""
    with closing(open_recording(config.recording, dumps)) if config.recording else nullcontext() as recording:
        if isinstance(recording, Replay):
            yield ReplayedEnvironments(recording)
            return
        async with live_environments(config, cluster, tell, alone=alone) as environments:
            yield RecordedEnvironments(environments, recording) if recording else environments


@asynccontextmanager
async def live_environments(
    config: EnvironmentConfig, cluster: Cluster, tell: Callable[[str], None], *, alone: bool
) -> AsyncIterator[Environments]:
    """Yield environments without recording. Raises `ConfigError`."""
    if not config.urls and not config.servers:
        isolation = isolation_of(config.isolation, factory_of(config), deadlines_of(config), config.max_sessions)
        try:
            await isolation.start()
            wait = config.start_timeout_seconds
            yield HostedEnvironments(isolation, max_sessions=config.max_sessions, wait_seconds=wait)
        finally:
            await isolation.stop()
        return
    settings = EnvironmentServerSettings(
        deadlines=deadlines_of(config),
        max_sessions=config.sessions_per_server,
        token=secrets.token_hex(32),  # only this run knows it
        access=Access(limits=limits_for_sessions(config.sessions_per_server)),
    )
    servers = WorkerServers(config, Restarts(cluster, tell), settings)
    started = await servers.start(alone=alone) if config.servers else []
    token = token_from(config.token_env)
    addresses = [address for _, address in started] or [Address(url=url, token=token) for url in config.urls]
    try:
        pool = await EnvironmentPool.connect(addresses, Patience(deadlines=deadlines_of(config)), tell)
    except EnvironmentFailed as error:
        raise ConfigError(f"environment {config.shown}: {error.detail}") from error
    for place, (worker, _) in enumerate(started):
        pool.keep(servers.keep(worker, place, pool))
    try:
        yield pool
    finally:
        await pool.close()


@dataclass(frozen=True, slots=True)
class WorkerServers:
    """Servers in workers of the run's cluster, which end with it."""

    config: EnvironmentConfig
    restarts: Restarts
    settings: EnvironmentServerSettings

    async def start(self, *, alone: bool) -> list[tuple[Worker, Address]]:
        """Start all; with `alone` they listen to this machine only. Raises `ConfigError`, and `WorkerDied`."""
        workers = await self.restarts.cluster.spawn(ENVIRONMENT, lambda index: {"loopback": alone})
        return list(zip(workers, await asyncio.gather(*map(self.serve, workers)), strict=True))

    async def serve(self, worker: Worker) -> Address:
        factory, kind, settings = factory_of(self.config), self.config.isolation, self.settings
        url = await WorkerHandle[EnvironmentServer](worker).call(
            lambda server: server.start(factory, kind, settings),
            timeout_seconds=START_SECONDS + self.config.start_timeout_seconds,
        )
        return Address(url=url, token=settings.token)

    async def keep(self, worker: Worker, place: int, pool: EnvironmentPool) -> Never:
        """Replace each server that dies. Raises `WorkerDied` if the replacement does not start."""
        while True:
            death = await worker.until_death()
            worker, address = await self.restarts.after(death, worker, self.serve)
            pool.move(place, address)


def factory_of(config: EnvironmentConfig) -> Factory:
    return Factory(name=str(config.hosted), arguments=config.hosted_arguments, variables=config.variables)


def deadlines_of(config: EnvironmentConfig) -> Deadlines:
    return Deadlines(
        open_seconds=config.start_timeout_seconds,
        reset_seconds=config.turn_timeout_seconds,
        step_seconds=config.turn_timeout_seconds,
    )
