"""The messages between a run and its supervisor: JSON with bytes in base64. Imports little, as `program.py`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf.sandbox.program import ProgramResult, SandboxLimits, TerminationReason


class Jail(NamedTuple):
    """Restrictions that the program's process applies to itself, in addition to its supervisor's."""

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
    """File descriptor: writing "0" to it moves the writer into the run's control group. None: the run has no group."""
    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


class RunRequest(NamedTuple):
    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, bytes]
    fetch: tuple[str, ...]
    stdin: bytes
    limits: SandboxLimits
    jail: Jail

    def pack(self) -> bytes:
        return pack_fields(self._asdict() | {"limits": self.limits._asdict(), "jail": self.jail._asdict()})


def unpack_request(line: bytes) -> RunRequest:
    fields = json.loads(line)
    return RunRequest(
        **fields
        | {
            "files": _decoded(fields["files"]),
            "stdin": base64.b64decode(fields["stdin"]),
            "limits": SandboxLimits(**fields["limits"]),
            "jail": Jail(**fields["jail"]),
        }
    )


def unpack_result(line: bytes) -> ProgramResult:
    fields = json.loads(line)
    known = {"ending": TerminationReason(fields["ending"]), "files": _decoded(fields["files"])}
    return ProgramResult(**fields | known)


def _decoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: base64.b64decode(content) for path, content in files.items()}


def pack_fields(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, default=lambda content: base64.b64encode(content).decode()).encode()
