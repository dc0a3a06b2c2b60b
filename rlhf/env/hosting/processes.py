"""Environments in separate processes, which end with their session or are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

from rlhf.cluster.child import Child, ChildEnded, variables_named_in
from rlhf.env.encoding import MESSAGE_BYTES, action_data, dumps, observation_from, spec_from, task_data
from rlhf.env.hosting.isolation import START_SECONDS, Deadlines, Factory
from rlhf.env.wire import Json, Undecodable
from rlhf.errors import ConfigError, DeadlinePassed, EnvironmentFailed, log_traceback
from rlhf.protocols import Environment
from rlhf.types import EnvironmentSpec, Message, Observation, Task
from rlhf.untrusted_text import InvalidJson


class ProcessIsolation:
    """One process per session, forked from a process that has imported the environment. `start` reads the spec."""

    spec: EnvironmentSpec

    def __init__(self, factory: Factory, deadlines: Deadlines) -> None:
        self._factory, self._deadlines = factory, deadlines
        self._importer: Child | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Import the environment in its own process. Raises `ConfigError`, `DeadlinePassed`."""
        await self._running_importer()

    async def open(self, session: str) -> Environment:
        try:
            importer = await self._running_importer()  # restarted after a kill from outside
        except (ConfigError, DeadlinePassed) as error:
            raise EnvironmentFailed(self._factory.name, "lost", f"it cannot be restarted: {error}") from None
        name, seconds = self.spec.name, self._deadlines.open_seconds
        with child_failures(name, "open", seconds):
            child = await importer.fork(line_bytes=MESSAGE_BYTES + 1)
            raise_if_failed(name, await child.receive(seconds))
        return ProcessEnvironment(name, child, self._deadlines)

    async def stop(self) -> None:
        """End the process; the kernel ends its forks with it."""
        if self._importer is not None:
            await self._importer.kill()

    async def _running_importer(self) -> Child:
        async with self._starting:
            if self._importer is None or not self._importer.alive:
                await self.stop()  # it may be stopped only
                self._importer = await self._new_importer()
            return self._importer

    async def _new_importer(self) -> Child:
        factory = self._factory
        importer = await Child.start(
            "rlhf.env.hosting.environment_process",
            [factory.name],
            line_bytes=MESSAGE_BYTES + 1,
            variables=(*factory.variables, *variables_named_in(factory.arguments)),
        )
        try:
            answer = await importer.ask(json.dumps(dict(factory.arguments)).encode() + b"\n", START_SECONDS)
        except TimeoutError:
            raise DeadlinePassed(f"the import of environment {factory.name}", START_SECONDS) from None
        except (ChildEnded, InvalidJson):
            raise ConfigError(f"environment {factory.name} ended its process at the import") from None
        if "spec" not in answer:
            await importer.kill()
            raise ConfigError(str(answer.get("problem")))
        self.spec = spec_from(answer["spec"])
        return importer


class ProcessEnvironment:
    """One session's process. It is killed, with its process group, when it exceeds a deadline or is closed."""

    def __init__(self, name: str, child: Child, deadlines: Deadlines) -> None:
        self._name, self._child, self._deadlines = name, child, deadlines

    async def reset(self, task: Task, *, seed: int) -> Observation:
        request = {"method": "reset", "task": task_data(task), "seed": seed}
        return await self._ask(request, self._deadlines.reset_seconds)

    async def step(self, action: Message) -> Observation:
        return await self._ask({"method": "step", "action": action_data(action)}, self._deadlines.step_seconds)

    async def close(self) -> None:
        await self._child.kill()

    async def _ask(self, request: Json, seconds: float) -> Observation:
        with child_failures(self._name, request["method"], seconds):
            answer = await self._child.ask(dumps(request).encode() + b"\n", seconds)
            raise_if_failed(self._name, answer)
            try:
                return observation_from(answer["answer"])
            except (KeyError, Undecodable) as error:
                await self._child.kill()
                raise InvalidJson(str(error)) from None


@contextlib.contextmanager
def child_failures(name: str, method: str, seconds: float) -> Iterator[None]:
    """Raise the failures of a child, which has been killed, as `EnvironmentFailed`."""
    try:
        yield
    except TimeoutError:
        raise EnvironmentFailed(name, "timeout", f"{method} was killed after {seconds:g} s") from None
    except ChildEnded as ended:
        raise EnvironmentFailed(name, "lost", f"its process {ended} during {method}") from None
    except InvalidJson as error:
        raise EnvironmentFailed(name, "protocol", f"{method}: {error}") from None


def raise_if_failed(name: str, answer: Json) -> None:
    """Raise `EnvironmentFailed` if the environment raised in place of an answer, and log its traceback."""
    if "kind" in answer:
        detail = str(answer.get("detail"))
        if "traceback" in answer:
            log_traceback(detail, str(answer["traceback"]))
        raise EnvironmentFailed(name, answer["kind"], detail)
