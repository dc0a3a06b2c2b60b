"""What the supervisor of one run is told, on its standard input, and what it answers: JSON, bytes in base64.

Its process starts for every run, so this and all it imports is the standard library, and little of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf.sandbox.limits import SandboxLimits


class Jail(NamedTuple):
    """What closes in the code, beside what the supervisor itself is started in."""

    folder: str
    """The only place that can be written to."""
    uid: int | None
    """The user id that the code drops to, which no other process has; None: that of the supervisor."""
    landlock: bool
    filtered: bool
    """By seccomp."""
    alone: bool
    """The supervisor is the first process of a process namespace."""
    sized: bool
    """The folder is a file system in memory of its own, which the kernel bounds. Outside a namespace the supervisor
    mounts it."""
    entrances: tuple[int, ...] = ()
    """Descriptors: "0" written to each moves the writer into the control group of the run, which bounds memory and
    processes. Empty: only the supervisor bounds what all use together."""
    events: int | None = None
    """Descriptor of what happened in the group."""
    end: int | None = None
    """Descriptor: "1" written to it kills all that is in the group."""
    second_uid: int | None = None
    """Another user id that no other process has: the code's real one at its start."""
    parts: bool = False
    """The first process is none of the code's, and may hide from the others of the run."""
    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


class RunRequest(NamedTuple):
    """One run. `main` is the program's file within the folder, `parent` the supervisor's parent, or 0 where it is
    alone."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, bytes]
    fetch: tuple[str, ...]
    stdin: bytes
    limits: SandboxLimits
    jail: Jail
    parent: int = 0

    def pack(self) -> bytes:
        told = self._asdict() | {"limits": self.limits._asdict(), "jail": self.jail._asdict()}
        return json.dumps(told, default=_text).encode()


def unpack_request(line: bytes) -> RunRequest:
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
    """What became of the code; the fields are those of `program.ProgramResult`. Text is bytes still."""

    ending: str
    return_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    detail: str
    files: Mapping[str, bytes]

    def pack(self) -> bytes:
        return json.dumps(self._asdict(), default=_text).encode()


def unpack_report(line: bytes) -> RunReport:
    told: dict[str, Any] = json.loads(line)
    output = {name: base64.b64decode(told[name]) for name in ("stdout", "stderr")}
    files = {path: base64.b64decode(content) for path, content in told["files"].items()}
    return RunReport(**(told | output | {"files": files}))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
