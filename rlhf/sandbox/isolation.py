"""The rungs of the ladder: how a warden is started on each, and what its cage is."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from rlhf.sandbox import bubblewrap, warden
from rlhf.sandbox.limits import Limits
from rlhf.sandbox.orders import Cage
from rlhf.sandbox.python import Interpreter
from rlhf.sandbox.uids import lent_uid

PACKAGE_ROOT = str(Path(__file__).parents[2])
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
START = "import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"


class Rung(StrEnum):
    """Strongest first."""

    BUBBLEWRAP = "bubblewrap"
    """Namespaces of its own: files, processes, network. With seccomp and resource limits."""
    LANDLOCK = "landlock"
    """Landlock, seccomp and resource limits: no namespaces needed."""
    RLIMITS = "rlimits"
    """Resource limits alone: files and network stay open. Never chosen unless allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """A rung, and the Python on it."""

    rung: Rung
    python: Interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one run happens: the command of its warden, and its cage."""

    command: tuple[str, ...]
    cage: Cage
    parent: int


@contextlib.contextmanager
def place(isolation: Isolation, limits: Limits, *, two_users: bool = False) -> Iterator[Place]:
    """A place for one run, gone afterwards with all its files. Raises `OSError`, `SandboxBroken`."""
    with contextlib.ExitStack() as stack:
        root = os.geteuid() == 0
        uid = stack.enter_context(lent_uid()) if root else None
        second = stack.enter_context(lent_uid()) if root and two_users else None
        if isolation.rung is Rung.BUBBLEWRAP:
            here = _in_namespaces(isolation, limits, uid)
        else:
            here = _in_a_folder(isolation, stack.enter_context(_scratch()), uid)
        yield replace(here, cage=here.cage._replace(second_uid=second))


def _in_namespaces(isolation: Isolation, limits: Limits, uid: int | None) -> Place:
    command = bubblewrap.command(isolation.python, PACKAGE_ROOT, DEVICES, limits, privileged=uid is not None)
    cage = Cage(folder=bubblewrap.FOLDER, uid=uid, landlock=False, filtered=True, alone=True)
    return Place(command=(*command, *_warden(isolation, bubblewrap.PACKAGE_ROOT)), cage=cage, parent=0)


def _in_a_folder(isolation: Isolation, folder: str, uid: int | None) -> Place:
    closed = isolation.rung is Rung.LANDLOCK
    cage = Cage(
        folder=folder,
        uid=uid,
        landlock=closed,
        filtered=closed,
        alone=False,
        readable=isolation.python.readable,
        devices=DEVICES,
    )
    return Place(command=_warden(isolation, PACKAGE_ROOT), cage=cage, parent=os.getpid())


def _warden(isolation: Isolation, root: str) -> tuple[str, ...]:
    start = START.format(root=root, module=warden.__name__)
    return (isolation.python.path, "-I", "-S", "-c", start)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """A folder where another user can get to, for the code; what it did to its rights is undone at the end."""
    usual = Path(tempfile.gettempdir())
    passable = all(above.stat().st_mode & stat.S_IXOTH for above in (usual, *usual.parents))
    folder = tempfile.mkdtemp(prefix="rlhf-sandbox-", dir=usual if passable or os.geteuid() else "/tmp")
    try:
        yield folder
    finally:
        _open_up(folder)
        shutil.rmtree(folder)


def _open_up(folder: str) -> None:
    """Folders that the code closed can be emptied again."""
    os.chmod(folder, stat.S_IRWXU)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            _open_up(entry.path)
