"""An environment server as a worker of a run: it ends with the cluster, and is replaced if it dies."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from rlhf.cluster.interfaces import LOOPBACK, own_address
from rlhf.env.config import IsolationKind
from rlhf.env.hosting.hosted import isolation_of
from rlhf.env.hosting.isolation import Factory
from rlhf.env.server.app import EnvironmentServerSettings, environment_uvicorn_config
from rlhf.http.serving import listening
from rlhf.runs.trace_export import exporting


class EnvironmentServer:
    """Serves on a free port, on its worker's event loop. Call `start` first."""

    def __init__(self, *, loopback: bool) -> None:
        """With `loopback` only clients on this machine can connect."""
        self._host = LOOPBACK if loopback else own_address()
        self._running = AsyncExitStack()

    async def start(self, factory: Factory, kind: IsolationKind, settings: EnvironmentServerSettings) -> str:
        """Import the environment and serve it; returns the server's URL. Raises `ConfigError`, `DeadlinePassed`."""
        isolation = isolation_of(kind, factory, settings.deadlines, settings.max_sessions)
        self._running.push_async_callback(isolation.stop)
        await isolation.start()
        self._running.enter_context(exporting("environment"))
        settings = replace(settings, host=self._host, port=0)
        config = environment_uvicorn_config(isolation, settings)
        return await self._running.enter_async_context(listening(config))

    async def close(self) -> None:
        await self._running.aclose()
