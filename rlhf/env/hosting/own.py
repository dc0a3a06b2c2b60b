"""Environments that manage sessions themselves, with their own isolation and deadlines, such as EnvPool."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from rlhf.cluster.attempt import Raised, attempt
from rlhf.config import load_piece
from rlhf.env.hosting.isolation import START_SECONDS, Deadlines, Factory, exception_line, in_thread
from rlhf.env.hosting.threads import Threads, do_nothing
from rlhf.errors import ConfigError
from rlhf.protocols import Environment, Environments
from rlhf.types import EnvironmentSpec

STOP_SECONDS = 30.0


class Stoppable(Environments, Protocol):
    """`Environments` that can be stopped."""

    def stop(self) -> None: ...


class OwnIsolation:
    """Sessions of one object of the class, made at the start. The object determines isolation and deadlines: the
    server's have no effect."""

    spec: EnvironmentSpec

    def __init__(self, factory: Factory, deadlines: Deadlines) -> None:
        self._factory = factory
        self._environments: Stoppable | None = None
        self._threads = Threads(f"environment {factory.name}", limit=1)

    async def start(self) -> None:
        """Make the object, in a thread: neither the import nor the constructor blocks the event loop.

        Raises `ConfigError`, `DeadlinePassed`.
        """
        awaited = f"the start of environment {self._factory.name}"
        self._environments = await self._threads.run(awaited, self._made, START_SECONDS, do_nothing)
        self.spec = self._environments.spec

    async def open(self, session: str) -> Environment:
        if self._environments is None:
            raise RuntimeError("open before start")
        return await self._environments.open(session)

    async def stop(self) -> None:
        """Stop the object, also in a thread. Raises `EnvironmentFailed`."""
        try:
            if self._environments is not None:
                stop = self._environments.stop
                await in_thread(self._threads, self._factory.name, "stop", stop, STOP_SECONDS, do_nothing)
        finally:
            self._threads.stop()

    def _made(self) -> Stoppable:
        create = partial(load_piece(self._factory.name, "the environment"), **self._factory.arguments)
        made = attempt(create, also=SystemExit)
        if isinstance(made, Raised):
            if isinstance(made.error, ConfigError):
                raise made.error
            raise ConfigError(
                f"environment {self._factory.name} cannot be made: {exception_line(made.error)}"
            ) from made.error
        if not all(hasattr(made, name) for name in ("spec", "open", "stop")):
            raise ConfigError(f"{self._factory.name} opens no sessions; serve it with --isolation thread or process")
        environments: Stoppable = made
        return environments
