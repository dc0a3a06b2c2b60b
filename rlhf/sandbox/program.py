"""The sandbox's interface: `Program`, `ProgramResult`, and `ProgramRunner`, which runs one and returns the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rlhf.errors import RlhfError, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Python code to run. Paths in `files` and `fetch` are relative to the folder in which it runs. `memory_bytes` of 0
    asks for all that the sandbox gives."""

    code: str
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    wall_seconds: float = 10.0
    memory_bytes: int = 0


class TerminationReason(StrEnum):
    """Why a run ended."""

    EXITED = "exited"
    """The program exited or was killed by a signal; see `return_code`."""
    TIME = "time"
    """Killed at its time limit."""
    EXCESS = "excess"
    """Killed for exceeding a limit; `detail` names it."""
    REFUSED = "refused"
    """Not started because its files cannot be written; `detail` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """The result of a program. `return_code` is negative for a signal, and None if the sandbox ended the run.

    Truncated output ends with a line that says so.
    """

    ending: TerminationReason
    return_code: int | None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    detail: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether the program exited with code 0."""
        return self.ending is TerminationReason.EXITED and self.return_code == 0


class ProgramRunner(Protocol):
    """Runs programs, in this process's sandbox or on a server.

    `run` raises `SandboxBroken` or `SandboxBusy` for failures that the program did not cause; what the program causes
    is in the result.
    """

    async def start(self) -> None: ...
    async def run(self, program: Program) -> ProgramResult: ...
    async def close(self) -> None: ...


class SandboxUnavailable(UserError):
    """No isolation level works on this machine."""


class SandboxBroken(RlhfError):
    """The sandbox failed to run a program, and the program is not the cause."""


class SandboxBusy(RlhfError):
    """No slot became free within the deadline, or too many programs are waiting."""
