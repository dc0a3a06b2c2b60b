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
    """Whether the supervisor is the first process of a process namespace, in which the folder exists already."""
    sized: bool
    """Whether the folder is a tmpfs of limited size. Outside a namespace the supervisor mounts it."""
    entrance: int | None = None
    """File descriptor: writing "0" to it moves the writer into the run's control group. None: there is no group."""
    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


class RunRequest(NamedTuple):
    """One run. `parent` is the process id of the supervisor's parent, or 0 if the supervisor is the first process of a
    namespace."""

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
        fields = self._asdict() | {"limits": self.limits._asdict(), "jail": self.jail._asdict()}
        return json.dumps(fields, default=_text).encode()


def unpack_request(line: bytes) -> RunRequest:
    """The request in a line of JSON."""
    fields: dict[str, Any] = json.loads(line)
    return RunRequest(
        command=tuple(fields["command"]),
        environment=fields["environment"],
        files=_files(fields["files"]),
        fetch=tuple(fields["fetch"]),
        stdin=base64.b64decode(fields["stdin"]),
        limits=SandboxLimits(**fields["limits"]),
        jail=Jail(**fields["jail"]),
        parent=fields["parent"],
    )


class RunReport(NamedTuple):
    """The result of the program; the fields are those of `program.ProgramResult`, with text as bytes."""

    ending: str
    return_code: int | None
    detail: str
    seconds: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    files: Mapping[str, bytes] = {}

    def pack(self) -> bytes:
        """The report as JSON."""
        return json.dumps(self._asdict(), default=_text).encode()


def unpack_report(line: bytes) -> RunReport:
    """The report in a line of JSON."""
    fields: dict[str, Any] = json.loads(line)
    output = {name: base64.b64decode(fields[name]) for name in ("stdout", "stderr")}
    return RunReport(**(fields | output | {"files": _files(fields["files"])}))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _files(packed: Mapping[str, str]) -> dict[str, bytes]:
    return {path: base64.b64decode(content) for path, content in packed.items()}
