"""Processes for foreign code: each answers requests in lines of JSON, and is killed with all that it started.

Scorers and environments run in such processes, and may run code that a policy wrote. So they get only environment
variables that programs commonly need, and those named for them: others may hold tokens of the run, of a model hub or of
a cloud. This module is the parent's side; `rlhf.cluster.child_side` is the child's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.errors import DeadlinePassed
from rlhf.untrusted_text import InvalidJson, read_json

EXIT_SECONDS = 1.0
"""A child that closed its socket has ended, or will within this time."""
KILL_SECONDS = 10.0
FORK_SECONDS = 10.0
STDERR = 2
"""The file descriptor as a number: `sys.stderr` may be replaced by an object without one."""
USUAL = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TMP", "TEMP", "COLUMNS",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NO_PROXY", "no_proxy", "DISPLAY", "SDL_VIDEODRIVER",
))  # fmt: skip
BEGINNINGS = (
    "LC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "PYTHON", "XDG_", "CUDA_", "NVIDIA_", "TORCH_",
    "HF_", "TRANSFORMERS_", "TOKENIZERS_", "MUJOCO_", "MPL", "RLHF_", "COVERAGE_",
)  # fmt: skip
PROXIES = frozenset(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"))
"""Passed on if their value holds no password."""
SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSW|CREDENTIAL|_KEY|AUTH|COOKIE", re.IGNORECASE)
NAMED_BY = "token_env"
"""The argument that names the variable with a class's token."""


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
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        process: subprocess.Popen[bytes] | None,
        line_bytes: int,
    ) -> None:
        self._channel, self._process, self._line_bytes = channel, process, line_bytes
        self._reader, self._writer = streams
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
        """Start `python -m MODULE WORDS… FD PARENT`, which calls `child_side.connect_to_parent` with the last two.

        Send arguments in the first request: other users can read command lines. `line_bytes` bounds an answer.
        `variables` of this process's environment are passed on in addition to the usual ones. Output is appended to
        `log`, by default to standard error.
        """
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") if log else contextlib.nullcontext(STDERR) as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *words, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"OMP_NUM_THREADS": "1"}
                | child_env(variables)
                | {"PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path)},
                start_new_session=True,  # a process group can be killed as a whole
            )
        return cls(ours, await asyncio.open_connection(sock=ours, limit=line_bytes), process, line_bytes)

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
        fork = Child(ours, await asyncio.open_connection(sock=ours, limit=line_bytes), None, line_bytes)
        fork._group = (await fork.receive(FORK_SECONDS))["process"]
        return fork

    @property
    def alive(self) -> bool:
        """Whether the process runs, and is not stopped. Of a fork, only its parent knows."""
        return self._process is not None and self._process.poll() is None and not self._stopped

    @property
    def _stopped(self) -> bool:
        """Whether a signal has stopped the process: its request is not at fault."""
        try:
            status = Path(f"/proc/{self._group}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    async def receive(self, seconds: float) -> dict[str, Any]:
        """Return a message that needs no request, as `ask` does."""
        return await self.ask(b"", seconds)

    async def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send a request, one line, and return the answer, an object.

        Without an answer the child is killed. Raises `TimeoutError`, `ChildEnded` (also of a stopped child),
        `InvalidJson`.
        """
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(request)
                await self._writer.drain()
                line = await self._reader.readline()
            if not line.endswith(b"\n"):
                raise ConnectionResetError
            if isinstance(message := read_json(line), dict):
                return message
            raise InvalidJson("JSON that is not an object")
        except ConnectionError:
            raise ChildEnded(await self._ending()) from None
        except ValueError as error:  # InvalidJson is one; so is the reader's error for a line that is too long
            await self.kill()
            long = f"an answer that is longer than the limit of {self._line_bytes:,} bytes"
            raise InvalidJson(str(error) if isinstance(error, InvalidJson) else long) from None
        except TimeoutError:
            stopped = self._stopped
            await self.kill()
            if stopped:
                raise ChildEnded("was stopped") from None
            raise
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def kill(self) -> None:
        """Kill the child and all processes of its group, and wait for its end.

        Raises `DeadlinePassed` if the kernel cannot end it, for instance because of a hanging file system.
        """
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        self._writer.close()
        if self._process is None:
            self._group = None  # its parent has reaped it: another process may get its number
            return
        try:
            await asyncio.to_thread(self._process.wait, KILL_SECONDS)
        except subprocess.TimeoutExpired:
            raise DeadlinePassed(f"the end of the killed process {self._process.pid}", KILL_SECONDS) from None

    async def _ending(self) -> str:
        """Make sure that the child has ended, and return how it ended by itself."""
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = await asyncio.to_thread(self._process.wait, EXIT_SECONDS)
        await self.kill()
        if code is None:
            return "stopped answering" if self._process else "ended"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def child_env(named: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables for a child; the `named` ones are passed on unconditionally."""
    wanted = frozenset(named)
    return {name: value for name, value in os.environ.items() if name in wanted or _is_usual(name, value)}


def _is_usual(name: str, value: str) -> bool:
    if name in PROXIES:
        return "@" not in value
    return name in USUAL or (name.startswith(BEGINNINGS) and not SECRET.search(name))


def variables_named_in(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables that arguments name at any depth: the values of `token_env`."""
    for name, value in arguments.items():
        if name == NAMED_BY and isinstance(value, str):
            yield value
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Mapping):
                yield from variables_named_in(item)
