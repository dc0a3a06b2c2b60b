"""Scorers in processes that can be killed: one that hangs, dies or raises gives no score, never 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlhf.cluster.passing import passed_on
from rlhf.errors import ConfigError, DataError, DeadlinePassed
from rlhf.http.untrusted_text import InvalidJson, read_json
from rlhf.reward.rows import row_line
from rlhf.types import Scored, Unscored, finite_number

START_TIMEOUT_SECONDS = 120.0
"""A scorer's module may import heavy libraries."""
EXIT_SECONDS = 1.0
"""A worker that closed its socket has ended, or will within this time."""
KILL_SECONDS = 10.0
RECEIVE_BYTES = 65536
LINE_BYTES = 2**20
"""A longer answer is refused: an answer holds a number, or a reason."""


class ScorerPool:
    """`workers` processes that run `function` (`module:name`) with keyword `arguments`, each with its own thread.

    The deadline of a response starts when a worker has it. Waiting for a free worker does not count, and ends because
    every earlier response does. A worker that exceeds the deadline is killed with all its child processes, and the next
    response gets a fresh one. `memory_bytes` limits the address space of each worker, where it is not 0: a function
    that exceeds it gets an exception. Workers die with this process. Their output is appended to `log`, or goes to
    standard error. `score` may be called from any event loop; call `close` before the process ends.
    """

    def __init__(
        self,
        function: str,
        workers: int,
        timeout_seconds: float,
        log: Path | None = None,
        variables: Sequence[str] = (),
        *,
        arguments: Mapping[str, Any] | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self._function, self._timeout_seconds, self._log, self._variables = function, timeout_seconds, log, variables
        self._arguments, self._memory_bytes = json.dumps(arguments or {}), memory_bytes
        # The kernel takes the thread that started a worker as its parent; these threads live as long as the pool.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=f"scorer {function}")
        self._slots: queue.SimpleQueue[ScorerProcess | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._workers, self._lock = workers, threading.Lock()
        self._started: list[ScorerProcess] = []
        self._closed = False

    async def start(self) -> None:
        """Start every worker now, so that an import error of the function is reported early. Raises `ConfigError`."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._warm) for _ in range(self._workers)))

    async def score(self, response: str, row: Mapping[str, Any]) -> Scored | Unscored:
        """The scorer's number, or `Unscored` of kind `timeout`, `died`, `raised` or `not a number`.

        Raises `ConfigError` when the function cannot be imported, `DataError` for a row that is not plain data.
        """
        try:
            request = row_line(response, row)
        except TypeError as error:
            raise DataError(f"{self._function} cannot be given a row: {error}") from None
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, request)

    async def close(self) -> None:
        """Kill the workers. Responses that are being scored return as `died`; waiting ones are cancelled."""
        await asyncio.to_thread(self._close)

    def _ask(self, request: bytes) -> Scored | Unscored:
        with self._worker() as worker:
            return worker.ask(request, self._timeout_seconds)

    def _warm(self) -> None:
        with self._worker():
            pass

    @contextlib.contextmanager
    def _worker(self) -> Iterator[ScorerProcess]:
        """A running worker, for one thread; there are as many threads as slots, so a slot is always free."""
        worker = self._slots.get()
        try:
            if worker is None or not worker.alive:
                worker = self._new_worker()
            yield worker
        finally:
            self._slots.put(worker)

    def _new_worker(self) -> ScorerProcess:
        with self._lock:
            if self._closed:
                raise RuntimeError("the scorer pool is closed")
            worker = ScorerProcess(
                self._function,
                self._log,
                self._variables,
                arguments=self._arguments,
                memory_bytes=self._memory_bytes,
            )
            self._started = [known for known in self._started if known.alive] + [worker]
        worker.wait_until_ready(START_TIMEOUT_SECONDS)
        return worker

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        for worker in self._started:
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._started:
            worker.hang_up()


class ScorerProcess:
    """One worker and its socket. Not thread-safe, except `kill`."""

    def __init__(
        self,
        function: str,
        log: Path | None = None,
        variables: Sequence[str] = (),
        *,
        arguments: str = "{}",
        memory_bytes: int = 0,
    ) -> None:
        """`arguments` is a JSON object, as text."""
        self._function = function
        command = [sys.executable, "-m", "rlhf.reward.scorer_process", function]
        self._channel, theirs = socket.socketpair()
        paths = os.pathsep.join(filter(None, sys.path))
        with theirs, contextlib.ExitStack() as stack:
            # A scorer's output must not mix with ours.
            output = stack.enter_context(log.open("ab")) if log else sys.stderr.fileno()
            numbers = map(str, (theirs.fileno(), os.getpid(), memory_bytes))
            self._process = subprocess.Popen(
                [*command, *numbers, arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"OMP_NUM_THREADS": "1"} | passed_on(variables) | {"PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is for the controller; a process group can be killed as a whole
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, timeout_seconds: float) -> None:
        """Raises `ConfigError` when the function cannot be imported, `DeadlinePassed` when that takes too long."""
        try:
            message = self._receive(time.monotonic() + timeout_seconds)
        except TimeoutError:
            self._stop()
            raise DeadlinePassed(f"the import of reward function {self._function}", timeout_seconds) from None
        except ConnectionError:
            message = {"detail": f"importing its module {self._end()}"}
        except InvalidJson as error:
            message = {"detail": f"its module answers for it: {error}"}
        if "ready" not in message:
            self._stop()
            raise ConfigError(f"reward.function {self._function!r} cannot be used: {message.get('detail')}")

    def ask(self, request: bytes, timeout_seconds: float) -> Scored | Unscored:
        """Send one request and wait for its answer. After `timeout` or `died` the process has ended."""
        deadline = time.monotonic() + timeout_seconds
        try:
            self._channel.settimeout(timeout_seconds)
            self._channel.sendall(request)
            return _outcome(self._receive(deadline))
        except TimeoutError:
            self._stop()
            return Unscored(kind="timeout", detail=f"{self._function} was killed after {timeout_seconds:g} s")
        except ConnectionError:
            return Unscored(kind="died", detail=f"{self._function} {self._end()}")
        except InvalidJson as error:
            self._stop()
            return Unscored(kind="died", detail=f"{self._function} answered what is no answer: {error}")

    def kill(self) -> None:
        """Kill the worker and its child processes, from any thread, and wait until it has ended.

        Raises `DeadlinePassed` for a process that the kernel cannot end, for instance because of a hanging file system.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:
            raise DeadlinePassed(f"the end of a killed worker of {self._function}", KILL_SECONDS) from None

    def hang_up(self) -> None:
        """Close the socket; only call it from the thread that uses it, or after that thread has ended."""
        self._channel.close()

    def _stop(self) -> None:
        self.kill()
        self.hang_up()

    def _end(self) -> str:
        """Make sure that the process has ended, and say how it ended by itself, as part of a sentence."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_SECONDS)
        code = self._process.returncode
        self._stop()
        if code is None:
            return "stopped answering"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended its process with exit code {code}"

    def _receive(self, deadline: float) -> dict[str, Any]:
        line = bytearray()
        while not line.endswith(b"\n"):
            self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            received = self._channel.recv(RECEIVE_BYTES)
            if not received:
                raise ConnectionResetError
            line += received
            if len(line) > LINE_BYTES:
                raise InvalidJson(f"a line of more than {LINE_BYTES} bytes")
        message = read_json(line)
        if not isinstance(message, dict):
            raise InvalidJson("JSON that is no object")
        return message


def _outcome(message: dict[str, Any]) -> Scored | Unscored:
    match message:
        case {"value": value}:
            number = None if isinstance(value, bool) else finite_number(value)
            if number is None:
                return Unscored(kind="not a number", detail=f"it returned {value!r:.200}")
            return Scored(value=number)
        case {"kind": str(kind), "detail": str(detail)}:
            return Unscored(kind=kind, detail=detail)
        case _:
            raise InvalidJson("an object without a value and without a failure")
