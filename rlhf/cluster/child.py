"""Processes for foreign code: each answers requests in lines of JSON, and is killed with all that it started.

Scorers and environments run in such processes. This module is the parent's side; `rlhf.cluster.child_side` is the
child's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlhf.cluster.child_env import child_env
from rlhf.errors import DeadlinePassed
from rlhf.http.untrusted_text import InvalidJson, read_json

EXIT_SECONDS = 1.0
"""A child that closed its socket has ended, or will within this time."""
KILL_SECONDS = 10.0
FORK_SECONDS = 10.0
POLL_SECONDS = 0.005
STDERR = 2
"""The file descriptor as a number: `sys.stderr` may be replaced by an object without one."""


class ChildEnded(Exception):
    """The child ended before it answered. The message completes a sentence about its process."""


class Child:
    """A child process and the socket to it. Every request has one answer; send the next request after it.

    Construct it by `start` or `fork`, in a thread that lives as long as the child: the kernel kills a child whose
    parent thread ends.
    """

    def __init__(
        self,
        channel: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: subprocess.Popen[bytes] | None,
    ) -> None:
        self._channel, self._reader, self._writer, self._process = channel, reader, writer, process
        self._group = process.pid if process else None

    @classmethod
    async def start(
        cls,
        module: str,
        words: Sequence[str],
        *,
        line_bytes: int,
        variables: Iterable[str] = (),
        log: Path | None = None,
    ) -> Child:
        """Start `python -m MODULE WORDS… FD PARENT`, which calls `child_side.connect` with the last two.

        Send arguments in the first request: other users can read command lines. `line_bytes` bounds an answer.
        `variables` of this process's environment are passed on in addition to the usual ones. Output is appended to
        `log`, by default to standard error.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else STDERR
            process = subprocess.Popen(
                [sys.executable, "-m", module, *words, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"OMP_NUM_THREADS": "1"}
                | child_env(variables)
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a process group can be killed as a whole
            )
        return await cls._of(ours, process, line_bytes)

    async def fork(self, *, line_bytes: int) -> Child:
        """Return a fork of this child, which must be in `Connection.fork_for_each`.

        Raises `TimeoutError`, `ChildEnded`.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._channel, [b"+"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ChildEnded(f"cannot be forked: {error}") from None
        fork = await self._of(ours, None, line_bytes)
        fork._group = (await fork.receive(FORK_SECONDS))["process"]
        return fork

    @classmethod
    async def _of(cls, channel: socket.socket, process: subprocess.Popen[bytes] | None, line_bytes: int) -> Child:
        reader, writer = await asyncio.open_connection(sock=channel, limit=line_bytes)
        return cls(channel, reader, writer, process)

    @property
    def alive(self) -> bool:
        """Whether the process runs. Of a fork, only its parent knows."""
        return self._process is not None and self._process.poll() is None

    async def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send a request, one line, and return the answer, an object.

        If there is none, the child is killed. Raises `TimeoutError`, `ChildEnded`, `InvalidJson`.
        """
        return await self._answer(request, seconds)

    async def receive(self, seconds: float) -> dict[str, Any]:
        """Return a message that was not asked for, as `ask` does."""
        return await self._answer(b"", seconds)

    async def kill(self) -> None:
        """Kill the child and all processes of its group, and wait for its end.

        Raises `DeadlinePassed` if the kernel cannot end it, for instance because of a hanging file system.
        """
        self._kill_group()
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, KILL_SECONDS)
            except subprocess.TimeoutExpired:
                raise DeadlinePassed(f"the end of the killed process {self._process.pid}", KILL_SECONDS) from None

    async def _answer(self, request: bytes, seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                if request:
                    self._writer.write(request)
                    await self._writer.drain()
                return _message(await self._reader.readline())
        except ConnectionError:
            raise ChildEnded(await self._ending()) from None
        except ValueError as error:  # InvalidJson is one; so is the reader's error for a line that is too long
            await self.kill()
            raise InvalidJson(str(error)) from None
        except (TimeoutError, asyncio.CancelledError):
            await self.kill()
            raise

    def _kill_group(self) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        self._group = None if self._process is None else self._group
        self._writer.close()

    async def _ending(self) -> str:
        """Make sure that the child has ended, and say how it ended by itself."""
        if self._process is None:
            self._kill_group()
            return "ended"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                while self.alive:
                    await asyncio.sleep(POLL_SECONDS)
        code = self._process.returncode
        await self.kill()
        if code is None:
            return "stopped answering"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _message(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ConnectionResetError
    message = read_json(line)
    if not isinstance(message, dict):
        raise InvalidJson("JSON that is not an object")
    return message
