"""Run environment code in threads of this process, and the parts that all isolations share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlhf.cluster.attempt import Raised, attempt
from rlhf.config import load_piece
from rlhf.env.hosting.threads import Threads, TooManyHung, do_nothing
from rlhf.errors import ConfigError, DeadlinePassed, EnvironmentFailed
from rlhf.protocols import Environment, LocalEnvironment
from rlhf.types import EnvironmentSpec, Message, Observation, Task, finite_number

START_SECONDS = 120.0
"""An environment's module may import heavy libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines in seconds for each method of an environment, its constructor included."""

    open_seconds: float = 50.0
    reset_seconds: float = 50.0
    step_seconds: float = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Factory:
    """An environment by name: `module:Class` and its constructor's arguments. `variables` are the environment variables
    that separate processes receive in addition to the usual ones and to those that `arguments` name."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    variables: tuple[str, ...] = ()

    def load(self) -> Callable[[], LocalEnvironment]:
        """Import the class, with its arguments bound. Raises `ConfigError` when it cannot be imported."""
        piece = load_piece(self.name, "the environment")
        return lambda: piece(**self.arguments)


class EnvironmentIsolation(Protocol):
    """Makes environments, each for one session, and runs their code. Call `start` first and `stop` last.

    `start` imports the environment and reads its spec; it raises `ConfigError` and `DeadlinePassed`. `open` makes one;
    an `EnvironmentFailed` of its constructor is of kind `raised` or `timeout`.
    """

    spec: EnvironmentSpec

    async def start(self) -> None: ...
    async def open(self, session: str) -> Environment: ...
    async def stop(self) -> None: ...


class ThreadIsolation:
    """Environments in threads of this process: fast, and sufficient for well-behaved code.

    A method that never returns occupies its thread forever, and at most `limit` threads are lost this way; a method
    that ends its process ends all sessions.
    """

    spec: EnvironmentSpec

    def __init__(self, factory: Factory, deadlines: Deadlines, limit: int = 1024) -> None:
        self._factory, self._deadlines = factory, deadlines
        self._threads = Threads(f"environment {factory.name}", limit, hung_limit=limit)

    async def start(self) -> None:
        """Import the environment in a thread: neither the import nor a constructor blocks the event loop."""
        awaited = f"the import of environment {self._factory.name}"
        self._create, self.spec = await self._threads.run(awaited, self._load, START_SECONDS, do_nothing)

    async def open(self, session: str) -> Environment:
        seconds = self._deadlines.open_seconds
        environment = await in_thread(self._threads, self.spec.name, "open", self._create, seconds, do_nothing)
        return ThreadEnvironment(self.spec.name, environment, self._threads, self._deadlines)

    async def stop(self) -> None:
        self._threads.stop()

    def _load(self) -> tuple[Callable[[], LocalEnvironment], EnvironmentSpec]:
        try:
            create = self._factory.load()
        except SystemExit as error:
            raise ConfigError(f"environment {self._factory.name} ended its process at the import: {error}") from None
        return create, load_spec(self._factory, create)


class ThreadEnvironment:
    """One environment whose methods run in any free thread, one at a time."""

    def __init__(self, name: str, environment: LocalEnvironment, threads: Threads, deadlines: Deadlines) -> None:
        self._name, self._environment, self._threads, self._deadlines = name, environment, threads, deadlines
        self._left = False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return await self._run("reset", lambda: self._environment.reset(task, seed=seed), self._deadlines.reset_seconds)

    async def step(self, action: Message) -> Observation:
        return await self._run("step", lambda: self._environment.step(action), self._deadlines.step_seconds)

    async def close(self) -> None:
        """Does not wait: the result of `close` is not needed. A method that is still running closes the environment
        when it returns."""
        if not self._left:
            self._left = True
            self._threads.spawn(self._environment.close)

    async def _run(self, method: str, work: Callable[[], Observation], seconds: float) -> Observation:
        try:
            said = await in_thread(self._threads, self._name, method, work, seconds, self._environment.close)
        except (EnvironmentFailed, asyncio.CancelledError) as error:
            # The thread may still be inside; it closes the environment when it leaves. No other thread may use it then.
            self._left = isinstance(error, asyncio.CancelledError) or error.kind == "timeout"
            raise
        return checked(self._name, said)


async def in_thread(
    threads: Threads, name: str, method: str, work: Callable[[], Any], seconds: float, late: Callable[[], None]
) -> Any:
    """The result of an environment's method. Raises `EnvironmentFailed`."""

    def guarded() -> Any:
        said = attempt(work, also=BaseException)  # sys.exit() in an environment is its failure, not ours
        if isinstance(said, Raised):
            raise EnvironmentFailed(name, "raised", f"{method}: {exception_line(said.error)}") from said.error
        return said

    try:
        return await threads.run(method, guarded, seconds, late)
    except DeadlinePassed:
        raise EnvironmentFailed(name, "timeout", f"{method} did not return within {seconds:g} s") from None
    except TooManyHung:
        detail = f"{threads.hung} calls never came back; isolation process can end them"
        raise EnvironmentFailed(name, "refused", detail) from None


def checked(name: str, said: object) -> Observation:
    """A method's return value, validated: an observation with a finite reward, converted to a plain float. Raises
    `EnvironmentFailed`."""
    if not isinstance(said, Observation):
        raise EnvironmentFailed(name, "protocol", f"it returned {said!r:.100}, not an Observation")
    reward = finite_number(said.reward)
    if reward is None and said.reward is not None:
        raise EnvironmentFailed(name, "protocol", f"its reward is {said.reward!r:.40}, which is no number")
    return said if reward is said.reward else replace(said, reward=reward)  # a copy costs as much as parsing a frame


def load_spec(factory: Factory, create: Callable[[], LocalEnvironment]) -> EnvironmentSpec:
    """The spec, read from one environment that is made and closed. Raises `ConfigError` when that fails."""

    def tried() -> object:
        environment = create()
        spec = environment.spec
        environment.close()
        return spec

    spec = attempt(tried, also=SystemExit)
    if isinstance(spec, Raised):
        cause = exception_line(spec.error)
        raise ConfigError(f"environment {factory.name} cannot be made with its arguments: {cause}") from spec.error
    if not isinstance(spec, EnvironmentSpec):
        raise ConfigError(f"environment {factory.name}: its spec is {spec!r:.100}, not an EnvironmentSpec")
    return spec


def exception_line(error: BaseException) -> str:
    """An exception of foreign code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
