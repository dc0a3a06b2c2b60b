"""Isolation levels: how a supervisor is started on each level, and which restrictions its jail has."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from rlhf.sandbox import bubblewrap, landlock, supervisor
from rlhf.sandbox.groups import ControlGroup, Parents, group
from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.python import Interpreter
from rlhf.sandbox.removal import folder_lock, remove, sweep
from rlhf.sandbox.run_request import Jail
from rlhf.sandbox.supervisor import LOOK_SECONDS
from rlhf.sandbox.uids import COUNT, FIRST, lent_uid

PACKAGE_ROOT = str(Path(__file__).parents[2])
FOLDER = "rlhf-sandbox-"
BEST_EFFORT = f"best effort, measured every {LOOK_SECONDS:g} s"
UNSHARED = "shared by process, so that a run of many gets more"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
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
    groups: Parents | None = None
    """Where each run gets a control group, which limits its memory and processes. None: the supervisor enforces these
    limits."""
    own_disk: bool = False
    """Whether each run's folder is a tmpfs of limited size that its supervisor mounts, also without separate
    namespaces."""

    @property
    def sized(self) -> bool:
        """Whether the kernel limits the size of the run's folder."""
        return self.own_disk or self.level is IsolationLevel.BUBBLEWRAP

    @property
    def bounds(self) -> dict[str, str]:
        """What limits memory, processes, disk and CPU time of a run, in words."""
        kept = f"by {self.groups}" if self.groups else BEST_EFFORT
        disk = "by a file system of its size" if self.sized else BEST_EFFORT
        return {"memory": kept, "processes": kept, "disk": disk, "processor": self._processor}

    @property
    def _processor(self) -> str:
        if self.groups and self.groups.shares:
            return f"a share for each run by {self.groups}"
        return UNSHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """Resources reserved for one run: a user id that no other process has, and a control group."""

    uid: int | None
    group: ControlGroup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorLaunch:
    """How to start one run: the command of its supervisor, and its jail."""

    command: tuple[str, ...]
    jail: Jail
    parent: int
    descriptors: tuple[int, ...] = ()
    """File descriptors that the supervisor inherits."""


@contextlib.contextmanager
def place(isolation: SandboxIsolation, limits: SandboxLimits, *, two_users: bool = False) -> Iterator[SupervisorLaunch]:
    """Prepare the environment of one run, and remove it with all files afterwards. Raises `OSError`,
    `SandboxBroken`."""
    with contextlib.ExitStack() as stack:
        root = os.geteuid() == 0
        uid = stack.enter_context(lent_uid()) if root else None
        second = stack.enter_context(lent_uid()) if root and two_users else None
        own = stack.enter_context(group(isolation.groups, limits)) if isolation.groups else None
        if isolation.level is IsolationLevel.BUBBLEWRAP:
            here = _in_namespaces(isolation, limits, Loan(uid=uid, group=own))
        else:
            here = _in_a_folder(isolation, stack.enter_context(_scratch()), Loan(uid=uid, group=own))
        yield replace(here, jail=here.jail._replace(second_uid=second, parts=two_users))


def sweep_folders() -> None:
    """Remove folders that dead services of this user left behind."""
    sweep(_scratch_parent(), FOLDER, {os.geteuid(), *(range(FIRST, FIRST + COUNT) if os.geteuid() == 0 else ())})


def _in_namespaces(isolation: SandboxIsolation, limits: SandboxLimits, loan: Loan) -> SupervisorLaunch:
    privileged = loan.uid is not None
    command = bubblewrap.bubblewrap_command(
        isolation.python, PACKAGE_ROOT, _devices(loan), limits, privileged=privileged
    )
    return _place(
        (*command, *_supervisor(isolation, bubblewrap.PACKAGE_ROOT)),
        loan,
        Jail(
            folder=bubblewrap.FOLDER,
            uid=loan.uid,
            landlock=landlock.version() > 0,  # defence in depth; nothing else protects files of the same user in /proc
            filtered=True,
            alone=True,
            sized=True,
            readable=(*isolation.python.readable, "/proc"),
            devices=_devices(loan),
        ),
    )


def _in_a_folder(isolation: SandboxIsolation, folder: str, loan: Loan) -> SupervisorLaunch:
    closed = isolation.level is IsolationLevel.LANDLOCK
    return _place(
        _supervisor(isolation, PACKAGE_ROOT),
        loan,
        Jail(
            folder=folder,
            uid=loan.uid,
            landlock=closed,
            filtered=closed,
            alone=False,
            sized=isolation.own_disk,
            readable=isolation.python.readable,
            devices=_devices(loan),
        ),
    )


def _place(command: tuple[str, ...], loan: Loan, jail: Jail) -> SupervisorLaunch:
    parent = 0 if jail.alone else os.getpid()
    if (own := loan.group) is None:
        return SupervisorLaunch(command=command, jail=jail, parent=parent)
    jail = jail._replace(entrances=own.entrances, events=own.events, end=own.end)
    return SupervisorLaunch(command=command, jail=jail, parent=parent, descriptors=own.descriptors)


def _devices(loan: Loan) -> tuple[str, ...]:
    """Accessible devices. A shared mapping of /dev/zero is memory that only a control group counts, so it may be left
    out."""
    return DEVICES if loan.group else tuple(device for device in DEVICES if device != "/dev/zero")


def _supervisor(isolation: SandboxIsolation, root: str) -> tuple[str, ...]:
    start = START.format(root=root, module=supervisor.__name__)
    return (isolation.python.path, "-I", "-S", "-c", start)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """A folder for the program, reachable for other users. If parts of it cannot be removed, the next start tries
    again."""
    folder = tempfile.mkdtemp(prefix=FOLDER, dir=_scratch_parent())
    with folder_lock(folder):
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                remove(folder)


def _scratch_parent() -> str:
    usual = Path(tempfile.gettempdir())
    passable = all(above.stat().st_mode & stat.S_IXOTH for above in (usual, *usual.parents))
    return str(usual) if passable or os.geteuid() else "/tmp"
