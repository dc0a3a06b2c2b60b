"""The messages between a run and its supervisor: request on standard input, report on output; JSON with bytes in
base64.

The supervisor's process starts for every run, so this file imports only a few modules of the standard library.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf.sandbox.limits import SandboxLimits


class Jail(NamedTuple):
    """Restrictions that the program's process applies to itself, in addition to those in which the supervisor
    starts."""

    folder: str
    """The only writable folder."""
    uid: int | None
    """The user id that the program runs as, which no other process has; None: that of the supervisor."""
    landlock: bool
    filtered: bool
    """Whether a seccomp filter is installed."""
    alone: bool
    """Whether the supervisor is the first process of a process namespace."""
    sized: bool
    """Whether the folder is a tmpfs of limited size. Outside a namespace the supervisor mounts it."""
    entrances: tuple[int, ...] = ()
    """File descriptors: writing "0" to each moves the writer into the run's control group, which limits memory and
    processes. If empty, only the supervisor enforces the limits of all processes together."""
    events: int | None = None
    """File descriptor of the group's event counters."""
    end: int | None = None
    """File descriptor: writing "1" to it kills all processes of the group."""
    second_uid: int | None = None
    """A second user id that no other process has: the program's real one at its start."""
    parts: bool = False
    """The first process is trusted (the judge) and may hide from the run's other processes."""
    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


class RunRequest(NamedTuple):
    """One run. `main` is the program's file in the folder; `parent` is the supervisor's parent, or 0 if the supervisor
    is the first process of a namespace."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, bytes]
    fetch: tuple[str, ...]
    stdin: bytes
    limits: SandboxLimits
    jail: Jail
    parent: int = 0

    def pack(self) -> bytes:
        """The request as JSON."""
        told = self._asdict() | {"limits": self.limits._asdict(), "jail": self.jail._asdict()}
        return json.dumps(told, default=_text).encode()


def unpack_request(line: bytes) -> RunRequest:
    """The request in a line of JSON."""
    told: dict[str, Any] = json.loads(line)
    return RunRequest(
        command=tuple(told["command"]),
        environment=told["environment"],
        files={path: base64.b64decode(content) for path, content in told["files"].items()},
        fetch=tuple(told["fetch"]),
        stdin=base64.b64decode(told["stdin"]),
        limits=SandboxLimits(**told["limits"]),
        jail=Jail(**told["jail"]),
        parent=told["parent"],
    )


class RunReport(NamedTuple):
    """The result of the program; the fields are those of `program.ProgramResult`, with text as bytes."""

    ending: str
    return_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    detail: str
    files: Mapping[str, bytes]

    def pack(self) -> bytes:
        """The report as JSON."""
        return json.dumps(self._asdict(), default=_text).encode()


def unpack_report(line: bytes) -> RunReport:
    """The report in a line of JSON."""
    told: dict[str, Any] = json.loads(line)
    output = {name: base64.b64decode(told[name]) for name in ("stdout", "stderr")}
    files = {path: base64.b64decode(content) for path, content in told["files"].items()}
    return RunReport(**(told | output | {"files": files}))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
