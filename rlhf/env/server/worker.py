"""An environment server as a worker of a run's cluster: it ends with the cluster, and its death is that of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from rlhf.env.hosting.isolation import Deadlines, Factory, Isolation
from rlhf.env.hosting.kinds import Kind, isolation_of
from rlhf.env.server.app import BACKLOG, ServerSettings, build_app, raise_open_files, uvicorn_config
from rlhf.errors import DeadlinePassed
from rlhf.http.binding import LOOPBACK, own_address

LISTEN_SECONDS = 20.0
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a server hosts and for whom. Whoever has the `token` may ask it."""

    factory: Factory
    isolation: Kind
    deadlines: Deadlines
    max_sessions: int
    token: str


class EnvironmentServer:
    """Serves on a free port, on the event loop of its worker. `start` comes first."""

    def __init__(self, *, loopback: bool) -> None:
        """With `loopback` all who ask are on this machine, and nobody else can."""
        self._host = LOOPBACK if loopback else own_address()
        self._isolation: Isolation | None = None
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, settings: WorkerSettings) -> str:
        """Import the environment and serve it. The server's URL. Raises `ConfigError`, `DeadlinePassed`."""
        raise_open_files()
        self._isolation = isolation_of(settings.isolation, settings.factory, settings.deadlines, settings.max_sessions)
        await self._isolation.start()
        listener = socket.create_server((self._host, 0), backlog=BACKLOG)
        served = ServerSettings(
            host=self._host,
            port=listener.getsockname()[1],
            token=settings.token,
            max_sessions=settings.max_sessions,
            deadlines=settings.deadlines,
        )
        self._server = InWorker(uvicorn_config(build_app(self._isolation, served), served))
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        await self._until_it_listens(self._server, self._serving)
        return f"http://{served.host}:{served.port}"

    async def close(self) -> None:
        """End all sessions, and the code behind them."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        if self._isolation is not None:
            await self._isolation.stop()

    async def _until_it_listens(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                while not server.started:
                    if serving.done():
                        serving.result()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise DeadlinePassed("the start of the environment server", LISTEN_SECONDS) from None


class InWorker(uvicorn.Server):
    """A server that leaves the signals to the process it is in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
