"""The nouns and the verb: a program goes in, what became of it comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rlhf.errors import RlhfError, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Python to run. Paths of `files` and `fetch` are relative to the folder it runs in.

    `memory_bytes` of 0 asks for all that the sandbox gives. With `two_users`, and where the sandbox has user ids to
    lend (started as root), the program starts with two: the effective one, whose folder it is, and another as the real
    one.
    A process of it may take either, and those of the one can neither signal those of the other nor touch their files.
    Without user ids to lend its first process may close itself to its children (`PR_SET_DUMPABLE`); what that process
    holds is not measured then.
    """

    code: str
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    wall_seconds: float = 10.0
    memory_bytes: int = 0
    two_users: bool = False


class TerminationReason(StrEnum):
    """How a run ended."""

    EXITED = "exited"
    """By itself, or by a signal: `return_code` says."""
    TIME = "time"
    """Killed when its time was over."""
    EXCESS = "excess"
    """Killed for using more than its limits; `detail` says of what."""
    REFUSED = "refused"
    """Not started: its files cannot be written; `detail` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """What became of a program. `return_code` is negative for a signal and None when the sandbox ended the run.

    Output that was cut ends with a line that says so.
    """

    ending: TerminationReason
    return_code: int | None
    stdout: str
    stderr: str
    seconds: float
    detail: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        return self.ending is TerminationReason.EXITED and self.return_code == 0


class ProgramRunner(Protocol):
    """Something that runs programs: in this process's sandbox, or in a server's.

    `run` raises `SandboxBroken` or `SandboxBusy` where the program is not to blame; whatever the program does is data.
    """

    async def start(self) -> None: ...
    async def run(self, program: Program) -> ProgramResult: ...
    async def close(self) -> None: ...


class SandboxUnavailable(UserError):
    """No isolation works on this machine."""


class SandboxBroken(RlhfError):
    """The sandbox could not run a program, for no fault of the program."""


class SandboxBusy(RlhfError):
    """No place came free within the deadline, or too many programs wait already."""
