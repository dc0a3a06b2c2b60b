"""Load-balance sessions over several environment servers; step many sessions at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rlhf.env.client.remote import Address, AtCapacity, Broken, Patience
from rlhf.env.client.servers import BUSY_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, RemoteEnvironments
from rlhf.env.hosting.hosted import SlotEnvironment
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.types import Message, Observation, Task

ASIDE_SECONDS = 2.0
"""How long a server that is full, or does not answer, is skipped while others have capacity."""


@dataclass(slots=True)
class PooledServer:
    """One server and the pool's state of it."""

    environments: RemoteEnvironments
    sessions: int = 0
    aside_until: float = 0.0

    def release(self) -> None:
        """Count one session less on this server."""
        self.sessions -= 1


class EnvironmentPool:
    """The `Environments` of several servers that serve the same environment. A session stays on its server."""

    def __init__(self, servers: Sequence[RemoteEnvironments], open_seconds: float = 60.0) -> None:
        self.spec = servers[0].spec
        if different := [one for one in servers if one.spec != self.spec]:
            urls = f"{servers[0].address.url} and {different[0].address.url}"
            raise ConfigError(f"{urls} serve different environments; a pool is of servers of one")
        self._servers, self._open_seconds = [PooledServer(one) for one in servers], open_seconds

    @classmethod
    async def connect(cls, addresses: Sequence[Address], patience: Patience | None = None) -> EnvironmentPool:
        """Wait for every server. Raises `EnvironmentFailed`, `ConfigError`."""
        patience = patience or Patience()
        servers = await asyncio.gather(*(RemoteEnvironments.connect(one, patience) for one in addresses))
        return cls(servers, patience.deadlines.open_seconds)

    async def open(self, session: str) -> Environment:
        """A session on the server with the fewest sessions, as soon as one has capacity. Raises `EnvironmentFailed`."""
        kind, last, pause = "lost", "no answer", BUSY_PAUSE_SECONDS
        try:
            async with asyncio.timeout(self._open_seconds):
                while True:
                    server = self._choose()
                    try:
                        return await self._place(server)
                    except (AtCapacity, Broken) as error:
                        server.aside_until = time.monotonic() + ASIDE_SECONDS
                        kind, last = "refused" if isinstance(error, AtCapacity) else "lost", str(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except TimeoutError:
            waited = f"{session}: no place on any server within {self._open_seconds:g} s: {last}"
            raise EnvironmentFailed(self.spec.name, kind, waited) from None

    async def _place(self, server: PooledServer) -> Environment:
        server.sessions += 1  # counted while it opens, so that concurrent opens are spread
        with ExitStack() as failing:
            failing.callback(server.release)
            opened = SlotEnvironment(await server.environments.try_open(), server.release)
            failing.pop_all()
        return opened

    def _choose(self) -> PooledServer:
        """The server with the fewest sessions among those not skipped; if all are skipped, the one whose time ends
        first."""
        now = time.monotonic()
        ready = [server for server in self._servers if server.aside_until <= now]
        if ready:
            return min(ready, key=lambda server: server.sessions)
        return min(self._servers, key=lambda server: server.aside_until)


class StepQueue:
    """Asynchronous send and receive as in EnvPool: actions are sent at once, answers are received in the order of
    completion.

    A session has at most one request in flight. Failures are received like observations.
    """

    def __init__(self) -> None:
        self._ready: asyncio.Queue[tuple[str, Observation | EnvironmentFailed]] = asyncio.Queue()
        self._asked: dict[str, asyncio.Task[None]] = {}

    @property
    def waiting(self) -> int:
        """Number of requests whose answer has not been received."""
        return len(self._asked)

    def send_reset(self, name: str, environment: Environment, task: Task, *, seed: int) -> None:
        self._begin(name, environment.reset(task, seed=seed))

    def send(self, name: str, environment: Environment, action: Message) -> None:
        self._begin(name, environment.step(action))

    async def receive(self) -> tuple[str, Observation | EnvironmentFailed]:
        """The name and answer of the next session that is ready. It always returns, since every request has a
        deadline."""
        name, answer = await self._ready.get()
        del self._asked[name]
        return name, answer

    def _begin(self, name: str, answer: Coroutine[Any, Any, Observation]) -> None:
        if name in self._asked:
            answer.close()
            raise ValueError(f"session {name} has a request out already")
        self._asked[name] = asyncio.create_task(self._wait(name, answer))

    async def _wait(self, name: str, answer: Coroutine[Any, Any, Observation]) -> None:
        try:
            self._ready.put_nowait((name, await answer))
        except EnvironmentFailed as failure:
            self._ready.put_nowait((name, failure))
