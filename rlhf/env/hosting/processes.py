"""Environments in separate processes, which end with their session or are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

from rlhf.cluster.passing import named_in, passed_on
from rlhf.env.answers import Undecodable
from rlhf.env.encoding import action_data, dumps, observation_from, spec_from, task_data
from rlhf.env.hosting.isolation import START_SECONDS, Deadlines, Factory
from rlhf.env.wire import Json
from rlhf.errors import ConfigError, DeadlinePassed, EnvironmentFailed
from rlhf.http.untrusted_text import read_json
from rlhf.protocols import Environment
from rlhf.types import EnvironmentSpec, Message, Observation, Task

FORK_SECONDS = 10.0
LINE_BYTES = 64 * 2**20
STDERR = 2
"""The file descriptor as a number: `sys.stderr` may be replaced by an object without one."""


class ProcessIsolation:
    """One process per session, forked from a process that has imported the environment. `start` reads the spec."""

    spec: EnvironmentSpec

    def __init__(self, factory: Factory, deadlines: Deadlines) -> None:
        self._factory, self._deadlines = factory, deadlines
        self._forker: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Import the environment in its own process. Raises `ConfigError`, `DeadlinePassed`."""
        async with self._starting:
            if self._forker is None or self._forker.poll() is not None:
                await self._start()

    async def open(self, session: str) -> Environment:
        try:
            await self.start()  # restarted where it was killed from outside
        except (ConfigError, DeadlinePassed) as error:
            raise EnvironmentFailed(self._factory.name, "lost", f"it cannot be started again: {error}") from None
        name, seconds = self.spec.name, self._deadlines.open_seconds
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                assert self._control is not None
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise EnvironmentFailed(
                    name, "lost", f"the process that starts environments is gone: {error}"
                ) from None
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
        environment = ProcessEnvironment(name, reader, writer, self._deadlines)
        await environment.born(seconds)
        return environment

    async def stop(self) -> None:
        """End the process; the kernel ends every child with it."""
        if self._forker is not None and self._control is not None:
            self._control.close()
            self._forker.kill()
            await asyncio.to_thread(self._forker.wait, FORK_SECONDS)

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._forker = launch_environment_process(self._factory, theirs)
        self._control = ours
        ours.setblocking(False)
        said = await self._first_line(ours, json.dumps(dict(self._factory.arguments)).encode() + b"\n")
        if "spec" not in said:
            raise ConfigError(
                said.get("problem") or f"environment {self._factory.name} ended its process at the import"
            )
        ours.setblocking(True)
        self.spec = spec_from(said["spec"])

    async def _first_line(self, control: socket.socket, arguments: bytes) -> Json:
        """The message that the process sends when it has imported the environment with these arguments."""
        received = b""
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.get_running_loop().sock_sendall(control, arguments)
                while not received.endswith(b"\n"):
                    part = await asyncio.get_running_loop().sock_recv(control, 65536)
                    if not part:
                        return {}
                    received += part
        except ConnectionError:
            return {}
        except TimeoutError:
            raise DeadlinePassed(f"the import of environment {self._factory.name}", START_SECONDS) from None
        said: Json = json.loads(received)
        return said


class ProcessEnvironment:
    """One session's process. It is killed, with its process group, when it exceeds a deadline or is closed."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deadlines: Deadlines
    ) -> None:
        self._name, self._reader, self._writer, self._deadlines = name, reader, writer, deadlines
        self._process: int | None = None

    async def born(self, seconds: float) -> None:
        """Wait for the fork and for the environment's constructor. Raises `EnvironmentFailed`."""
        async with self._killed_on_failure("open", seconds):
            self._process = (await self._receive())["process"]
            self._raise_if_failed(await self._receive())

    async def reset(self, task: Task, *, seed: int) -> Observation:
        request = {"method": "reset", "task": task_data(task), "seed": seed}
        return await self._ask(request, self._deadlines.reset_seconds)

    async def step(self, action: Message) -> Observation:
        return await self._ask({"method": "step", "action": action_data(action)}, self._deadlines.step_seconds)

    async def close(self) -> None:
        self._kill()

    async def _ask(self, request: Json, seconds: float) -> Observation:
        async with self._killed_on_failure(request["method"], seconds):
            self._writer.write(dumps(request).encode() + b"\n")
            await self._writer.drain()
            said = self._raise_if_failed(await self._receive())
            return observation_from(said["answer"])

    async def _receive(self) -> Json:
        received = await self._reader.readline()
        if not received.endswith(b"\n"):
            raise ConnectionResetError
        said = read_json(received)
        if not isinstance(said, dict):
            raise Undecodable(f"an answer that is no object: {said!r:.100}")
        return said

    def _raise_if_failed(self, said: Json) -> Json:
        if "kind" in said:
            raise EnvironmentFailed(self._name, said["kind"], said["detail"])
        return said

    @contextlib.asynccontextmanager
    async def _killed_on_failure(self, method: str, seconds: float) -> AsyncIterator[None]:
        """Raise failures of the body as `EnvironmentFailed`; the process is killed, unless the environment only
        raised."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            self._kill()
            raise EnvironmentFailed(self._name, "timeout", f"{method} was killed after {seconds:g} s") from None
        except ConnectionError:
            self._kill()
            raise EnvironmentFailed(self._name, "lost", f"its process ended during {method}") from None
        except (ValueError, KeyError, Undecodable) as error:
            self._kill()
            raise EnvironmentFailed(self._name, "protocol", f"{method}: {error}") from None
        except asyncio.CancelledError:
            self._kill()
            raise

    def _kill(self) -> None:
        """Kill the whole process group, with everything that the environment started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process, signal.SIGKILL)
        self._process = None
        self._writer.close()


def launch_environment_process(factory: Factory, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the process. It receives its arguments over the socket, since other users can read command lines."""
    words = [factory.name, str(theirs.fileno()), str(os.getpid())]
    passed = passed_on((*factory.variables, *named_in(factory.arguments)))
    return subprocess.Popen(
        [sys.executable, "-m", "rlhf.env.hosting.environment_process", *words],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=STDERR,  # the environment's output must not mix with ours
        env={"OMP_NUM_THREADS": "1"} | passed | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
