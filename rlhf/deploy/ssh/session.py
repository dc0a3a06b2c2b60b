"""One remote command as the launcher sees it: the connection to the host, the command's output, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.cluster.roles import Resources
from rlhf.deploy.ssh.hosts_file import SshHost
from rlhf.deploy.ssh.remote import READY, SAVE
from rlhf.deploy.ssh.remote_command import RemoteCommand
from rlhf.errors import DeadlinePassed, HostError

CONNECT_SECONDS = 10
READY_SECONDS = 40.0
"""Deadline from the start of ssh to the remote process's first line: connection, login and the start of Python."""
BEAT_SECONDS = 5.0
LAST_LINES = 10
NO_SUCH_COMMAND = (126, 127)
SSH_FAILED = 255
LINE_BYTES = 1 << 20
"""Longer lines are passed on in pieces."""
CHUNK_BYTES = 1 << 16
LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""Progress bars end their lines with a single carriage return. As the last byte read it may be half of a line
ending."""
Print = Callable[[str], None]


def connection(host: SshHost, shared: Path, *, user: str | None, config: Path | None) -> list[str]:
    """Return the command that starts the remote process on a host. ssh asks no question and detects a dead connection.
    It shares no connection with this user's other ssh processes, which could end it."""
    path = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []
    far_end = ["env", *path, sys.executable, "-m", "rlhf.deploy.ssh.remote", str(shared)]
    if host.is_here:
        return far_end
    options = {"BatchMode": "yes", "ConnectTimeout": CONNECT_SECONDS, "ServerAliveInterval": 5,
               "ServerAliveCountMax": 4, "ControlPath": "none", "LogLevel": "ERROR"}  # fmt: skip
    words = ["ssh", "-T", *(f"-o{name}={value}" for name, value in options.items())]
    words += ["-F", str(config)] if config else []
    words += ["-l", user] if user else []
    return [*words, "--", host.name, "exec " + shlex.join(far_end)]


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Iterate over a command's output, line by line; the last line may have no line ending."""
    waiting = b""
    while chunk := await stream.read(CHUNK_BYTES):
        *lines, waiting = LINE_END.split(waiting + chunk)
        for line in lines:
            yield line.decode(errors="replace")
        if len(waiting) > LINE_BYTES:
            yield waiting.decode(errors="replace")
            waiting = b""
    if waiting:
        yield waiting.removesuffix(b"\r").decode(errors="replace")


class SshSession:
    """An open connection. `end` closes it, and the remote process then ends its command."""

    def __init__(self, host: SshHost, process: asyncio.subprocess.Process, output: Print, errors: Print) -> None:
        self.host = host
        self._process, self._print_output, self._print_error = process, output, errors
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._ready: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._work = [asyncio.ensure_future(work) for work in (self._read_output(), self._read_errors(), self._beat())]

    @classmethod
    async def open(cls, host: SshHost, words: Sequence[str], print_output: Print, print_error: Print) -> SshSession:
        """Start the connection outside this terminal's process group: the launcher ends all in order after Ctrl-C.
        Raises `HostError` if ssh is not installed."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except FileNotFoundError:
            raise HostError(host.name, f"this machine has no {words[0]} to reach it; install openssh-client") from None
        return cls(host, process, print_output, print_error)

    async def ready(self) -> Resources:
        """Return the host's resources for the run. Raises `HostError` if the remote process does not report in time."""
        waiting = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((self._ready, waiting), timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._ready.done():
            raise HostError(self.host.name, await self._why_not())
        facts = self._ready.result()
        if not facts["sees"]:
            raise HostError(self.host.name, "it does not see the run's folder; hosts must share its file system")
        cpus, gpus = self.host.cpus, self.host.gpus
        return Resources(
            node=self.host.name,
            cpus=facts["cpus"] if cpus is None else float(cpus),
            gpus=facts["gpus"] if gpus is None else float(gpus),
        )

    def order(self, orders: RemoteCommand) -> None:
        """Send the command to run."""
        self._send(orders.line())

    def save(self) -> None:
        """Ask the command to save and exit: the remote process sends it SIGUSR1."""
        self._send(SAVE.encode() + b"\n")

    @property
    def pid(self) -> int:
        """Process id of the connection's local process."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the exit code of the command, or of ssh if the connection broke."""
        code = await self._process.wait()
        await asyncio.wait(self._work[:2], timeout=BEAT_SECONDS)
        return code

    async def end(self, seconds: float) -> None:
        """End the command, or kill the connection. Raises `DeadlinePassed` if the remote process confirms no end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            self._process.kill()
            raise DeadlinePassed(f"the end of what ran on {self.host.name}", seconds) from None
        finally:
            for work in self._work:
                work.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)

    @property
    def ending(self) -> str:
        """How it ended: a lost connection, or the command's last line of output."""
        lost = self._process.returncode == SSH_FAILED and not self.host.is_here
        return "its connection is lost" if lost else f"its node ended: {self.last_words}"

    @property
    def last_words(self) -> str:
        """Return the last line of output."""
        return self._last[-1] if self._last else "it printed nothing"

    async def _why_not(self) -> str:
        if self._process.returncode is None:
            return f"it did not answer within {READY_SECONDS:g} s"
        await asyncio.wait(self._work[1:2], timeout=1.0)
        if self._process.returncode in NO_SUCH_COMMAND:
            return f"there is no {sys.executable}; make the same virtual environment at the same path"
        if any("No module named" in line for line in self._last):
            return f"{sys.executable} has no rlhf of this version there ({self.last_words}); install it"
        if self._process.returncode == SSH_FAILED and "Permission denied" in self.last_words:
            return f"{self.last_words.rstrip('.')}; set up a key: ssh asks for no password here"
        return self.last_words

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        async for line in lines_of(self._process.stdout):
            if self._ready.done():
                self._last.append(line)
                self._print_output(line)
            elif line.startswith(READY):
                self._ready.set_result(json.loads(line.removeprefix(READY)))

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in lines_of(self._process.stderr):
            if line.strip():
                self._last.append(line.strip())
            if self._ready.done():
                self._print_error(line)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._send(b"\n")

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):  # its end is detected elsewhere
            if self._process.stdin is not None:
                self._process.stdin.write(data)
