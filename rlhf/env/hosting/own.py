"""Environments that are a place of sessions themselves, with isolation and deadlines of their own: EnvPool, for one."""

from __future__ import annotations

from typing import Protocol

from rlhf.env.hosting.isolation import Deadlines, Factory, told
from rlhf.errors import ConfigError
from rlhf.pieces import load_piece
from rlhf.protocols import Environment, Environments
from rlhf.types import EnvironmentSpec


class Stoppable(Environments, Protocol):
    """`Environments` with an end."""

    def stop(self) -> None: ...


class OwnIsolation:
    """Sessions of one object of the class, made at the start, as it isolates them and with the deadlines that it has:
    those of the server count for nothing."""

    spec: EnvironmentSpec

    def __init__(self, factory: Factory, deadlines: Deadlines) -> None:
        self._factory = factory
        self._environments: Stoppable | None = None

    async def start(self) -> None:
        """Make the object. Raises `ConfigError`."""
        piece = load_piece(self._factory.name, "the environment")
        try:
            made = piece(**self._factory.arguments)
        except TypeError as error:
            raise ConfigError(f"environment {self._factory.name} cannot be made: {told(error)}") from error
        if not all(hasattr(made, name) for name in ("open", "stop")):
            raise ConfigError(f"{self._factory.name} opens no sessions; serve it with --isolation thread or process")
        self._environments, self.spec = made, made.spec

    async def open(self, session: str) -> Environment:
        if self._environments is None:
            raise RuntimeError("open before start")
        return await self._environments.open(session)

    async def stop(self) -> None:
        if self._environments is not None:
            self._environments.stop()
