"""Programs, their results and limits, and `ProgramRunner`. Imports little: each run starts a process."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

MIB = 1024 * 1024


class Program(NamedTuple):
    """Python code to run. Paths in `files` and `fetch` are relative to the folder in which it runs. `memory_bytes` of 0
    asks for all that the sandbox gives."""

    code: str
    stdin: bytes = b""
    files: Mapping[str, bytes] = {}
    fetch: tuple[str, ...] = ()
    wall_seconds: float = 10.0
    memory_bytes: int = 0


class TerminationReason(StrEnum):
    EXITED = "exited"
    """The program exited or was killed by a signal; see `return_code`."""
    TIME = "time"
    """Killed at its time limit."""
    EXCESS = "excess"
    """Killed for exceeding a limit; `detail` names it."""
    REFUSED = "refused"
    """Not started because its files cannot be written; `detail` says why."""


class ProgramResult(NamedTuple):
    """The result of a program. `return_code` is negative for a signal, and None if the sandbox ended the run."""

    ending: TerminationReason
    return_code: int | None = None
    detail: str = ""
    seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""
    files: Mapping[str, bytes] = {}

    @property
    def succeeded(self) -> bool:
        return self.ending is TerminationReason.EXITED and self.return_code == 0


class SandboxLimits(NamedTuple):
    """Limits of one run. Memory, files and processes are limited for all processes of the run together."""

    wall_seconds: float = 10.0
    """Time from the start of the program to its end. The CPU seconds of each process are limited by it too."""
    memory_bytes: int = 1024 * MIB
    """Limit of each process's address space, and of the memory that all processes use."""
    disk_bytes: int = 64 * MIB
    """Size of everything in the run's folder, and of any one file."""
    files: int = 4096
    """Number of entries in the run's folder."""
    processes: int = 64
    """Number of processes and threads."""
    open_files: int = 256
    """Number of open files of one process."""
    output_bytes: int = MIB
    """Bytes kept of standard output and of standard error, each; the rest is read and dropped."""
    fetched_bytes: int = 16 * MIB
    """Size of all files that are returned."""

    def within(self, wall_seconds: float, memory_bytes: int) -> SandboxLimits:
        """Lower these limits to what a program asks for; a memory request of 0 or less means no request."""
        return self._replace(
            wall_seconds=min(self.wall_seconds, wall_seconds),
            memory_bytes=min(self.memory_bytes, memory_bytes) if memory_bytes > 0 else self.memory_bytes,
        )


class ProgramRunner(Protocol):
    """Runs programs, in this process's sandbox or on a server. `run` raises `SandboxBroken` or `SandboxBusy` for
    failures that the program did not cause."""

    async def start(self) -> None: ...
    async def run(self, program: Program) -> ProgramResult: ...
    async def close(self) -> None: ...
