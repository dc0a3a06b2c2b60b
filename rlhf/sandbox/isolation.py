"""Isolation levels: how a supervisor is started on each level, and which restrictions its jail has."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rlhf.sandbox import bubblewrap, landlock, supervisor
from rlhf.sandbox.groups import ControlGroup, GroupParent, control_group
from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.program import SandboxBroken
from rlhf.sandbox.python import Interpreter
from rlhf.sandbox.run_request import Jail

PACKAGE_ROOT = str(Path(__file__).parents[2])
FIRST_UID, UIDS = 64000, 512
"""User ids for runs: in the 16-bit range that every container maps, and outside the ranges that distributions
assign."""
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
ZERO = "/dev/zero"
START = "import sys; sys.path.insert(0, {root!r}); from {module} import supervisor_main; supervisor_main()"


class IsolationLevel(StrEnum):
    """Isolation levels, strongest first."""

    BUBBLEWRAP = "bubblewrap"
    """Separate namespaces for files, processes and network, with seccomp and resource limits."""
    LANDLOCK = "landlock"
    """Landlock, seccomp and resource limits; needs no namespaces."""
    RLIMITS = "rlimits"
    """Resource limits only: files and network are accessible. Used only if explicitly allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxIsolation:
    """An isolation level and the Python that runs on it."""

    level: IsolationLevel
    python: Interpreter
    groups: GroupParent | None = None
    """Where each run gets a control group. None: resource limits bound each process, and nothing bounds their sum."""
    own_disk: bool = False
    """Whether each run's folder is a tmpfs of limited size that its supervisor mounts, also without separate
    namespaces."""

    @property
    def sized(self) -> bool:
        """Whether the kernel limits the size of the run's folder."""
        return self.own_disk or self.level is IsolationLevel.BUBBLEWRAP

    @property
    def own_count(self) -> bool:
        """Whether the kernel counts the processes of a run apart from all others."""
        return bool(self.groups) or os.geteuid() == 0 or self.level is IsolationLevel.BUBBLEWRAP

    @property
    def bounds(self) -> dict[str, str]:
        """What limits memory, processes, disk and processor time of a run, in words."""
        count = "by the kernel's count for one user" if self.own_count else "together with this user's other processes"
        return {
            "memory": "by cgroup v2" if self.groups else "for each process alone",
            "processes": "by cgroup v2" if self.groups else count,
            "disk": "by a file system of its size" if self.sized else f"measured every {supervisor.LOOK_SECONDS:g} s",
            "processor": "a share for each run by cgroup v2"
            if self.groups and self.groups.shares
            else "shared by process, so that a run of many gets more",
        }

    @property
    def loose(self) -> list[str]:
        """The limits that a run may exceed, or that other processes use up."""
        exact = {"memory": bool(self.groups), "processes": self.own_count, "disk": self.sized}
        return [name for name, is_exact in exact.items() if not is_exact]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorLaunch:
    """How to start one run: the command of its supervisor, and its jail."""

    command: tuple[str, ...]
    jail: Jail
    group: ControlGroup | None

    @property
    def parent(self) -> int:
        """The process id under which the supervisor sees this process; 0 in a process namespace."""
        return 0 if self.jail.alone else os.getpid()


@contextlib.contextmanager
def launch(isolation: SandboxIsolation, limits: SandboxLimits) -> Iterator[SupervisorLaunch]:
    """Reserve a user id and a control group for one run, as far as this process can. Raises `OSError`,
    `SandboxBroken`."""
    with contextlib.ExitStack() as stack:
        uid = stack.enter_context(lent_uid()) if os.geteuid() == 0 else None
        group = stack.enter_context(control_group(isolation.groups, limits)) if isolation.groups else None
        alone = isolation.level is IsolationLevel.BUBBLEWRAP
        closed = isolation.level is IsolationLevel.LANDLOCK
        # A shared mapping of /dev/zero is memory that only a control group counts.
        devices = (*DEVICES, ZERO) if group else DEVICES
        jail = Jail(
            folder=bubblewrap.FOLDER if alone else f"{_scratch_parent()}/rlhf-sandbox-{secrets.token_hex(8)}",
            uid=uid,
            # In namespaces it is a second wall: nothing else protects files of the same user in /proc.
            landlock=closed or (alone and landlock.version() > 0),
            filtered=closed or alone,
            alone=alone,
            sized=isolation.sized,
            entrance=group.entrance if group else None,
            readable=(*isolation.python.readable, "/proc") if alone else isolation.python.readable,
            devices=devices,
        )
        root = bubblewrap.PACKAGE_ROOT if alone else PACKAGE_ROOT
        start = START.format(root=root, module=supervisor.__name__)
        command: tuple[str, ...] = (isolation.python.path, "-I", "-S", "-c", start)
        if alone:
            privileged = uid is not None
            command = (
                *bubblewrap.bubblewrap_command(isolation.python, PACKAGE_ROOT, devices, limits, privileged=privileged),
                *command,
            )
        yield SupervisorLaunch(command=command, jail=jail, group=group)


@contextlib.contextmanager
def lent_uid() -> Iterator[int]:
    """A user id that no other run on this machine has. Raises `SandboxBroken` when all are in use.

    The loan is an abstract unix socket named after the id: the kernel releases it when this process dies.
    """
    for uid in range(FIRST_UID, FIRST_UID + UIDS):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0rlhf-sandbox-uid-{uid}")
            except OSError:
                continue
            yield uid
            return
    raise SandboxBroken(f"{UIDS} runs have a user id already")


def _scratch_parent() -> str:
    """Where the supervisor makes the program's folder: a place that other users reach, if the program is one."""
    usual = Path(tempfile.gettempdir())
    passable = all(above.stat().st_mode & stat.S_IXOTH for above in (usual, *usual.parents))
    return str(usual) if passable or os.geteuid() else "/tmp"
