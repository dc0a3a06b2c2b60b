"""Control groups (cgroup v2): kernel limits on memory, processes and threads of a whole run, even if a process hides
them, and a fair share of processor time per run. Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst`."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlhf.sandbox.program import SandboxLimits

CONTROLLERS, PROCESSOR = frozenset({"memory", "pids"}), "cpu"
"""Required controllers, and an optional one."""
RUN, SERVICE = "rlhf-run-", "rlhf-service"
"""Name prefix of the groups of runs, and the name of the group for processes that must leave our own group."""
REMOVE_SECONDS, PAUSE_SECONDS, MOVES = 5.0, 0.002, 16
OLD_SECONDS = 60.0
"""A younger group without processes may belong to a run that is about to start."""
PROCESSES, SUBTREE = "cgroup.procs", "cgroup.subtree_control"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParent:
    """The folder in which each run gets a group. `shares` says that the kernel divides processor time by run and not
    by process."""

    folder: str
    shares: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """The group of one run. Writing "0" to the file descriptor `entrance` moves the writer into it."""

    folder: str
    entrance: int

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed the run because of its memory. It kills all processes of the group together."""
        lines = Path(self.folder, "memory.events").read_text().splitlines()
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)


def find_group_parent() -> tuple[GroupParent | None, str]:
    """Find where groups of runs can be made, else why not, and remove groups that dead services left behind."""
    try:
        here, top = own_group(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        parent = delegating_group(here, top)
        _sweep(parent.folder)
    except OSError as error:
        return None, f"cgroup v2: {error}"
    return parent, ""


def own_group(groups: str, mounts: str) -> tuple[Path, Path]:
    """Return this process's group and the topmost visible one, as folders, from `/proc/self/cgroup` and
    `/proc/self/mountinfo`. Raises `OSError`."""
    own = next((line.removeprefix("0::") for line in groups.splitlines() if line.startswith("0::")), None)
    mounted = next((line.split(" ") for line in mounts.splitlines() if " - cgroup2 " in line), None)
    if own is None or mounted is None:
        raise OSError("it is not mounted")
    root, point = mounted[3:5]
    inside = os.path.relpath(own, root)
    if ".." in inside.split("/"):
        raise OSError(f"the cgroup of this process is outside the mount at {point}")
    return Path(point, inside), Path(point)


def delegating_group(here: Path, top: Path) -> GroupParent:
    """Return the nearest group at or above ours that delegates the controllers and is writable. Otherwise our own
    group, whose processes are moved to a child group first, because a group with processes cannot delegate
    controllers. Raises `OSError`."""
    for folder in (here, *here.parents):
        if folder.is_relative_to(top) and _listed(folder / SUBTREE) >= CONTROLLERS and _writable(folder):
            return GroupParent(folder=str(folder), shares=_shares_processor(folder))
    if not _listed(here / "cgroup.controllers") >= CONTROLLERS:
        raise OSError(f"{here} lacks the memory and process controllers")
    if not (_writable(here) and os.access(here / SUBTREE, os.W_OK)):
        raise OSError(f"{here} cannot be written to (start it with systemd-run --user -p Delegate=yes)")
    if (here / "cgroup.type").exists():  # the root group may have processes
        _move_processes(here, here / SERVICE)
    (here / SUBTREE).write_text(" ".join(f"+{name}" for name in sorted(CONTROLLERS)))
    return GroupParent(folder=str(here), shares=_shares_processor(here))


@contextlib.contextmanager
def control_group(parent: GroupParent, limits: SandboxLimits) -> Iterator[ControlGroup]:
    """Make a group with the limits of one run; at the end, kill its processes and remove it. Raises `OSError`."""
    folder = Path(parent.folder, f"{RUN}{secrets.token_hex(8)}")
    folder.mkdir()
    try:
        set_limits(folder, limits)
        entrance = os.open(folder / PROCESSES, os.O_WRONLY | os.O_CLOEXEC)
        try:
            yield ControlGroup(folder=str(folder), entrance=entrance)
        finally:
            os.close(entrance)
    finally:
        _remove(folder)


def set_limits(folder: Path, limits: SandboxLimits) -> None:
    (folder / "memory.max").write_text(str(limits.memory_bytes))
    (folder / "memory.oom.group").write_text("1")
    (folder / "pids.max").write_text(str(limits.processes))
    if (folder / "memory.swap.max").exists():  # a kernel without swap has no such file
        (folder / "memory.swap.max").write_text("0")


def _shares_processor(folder: Path) -> bool:
    """Whether child groups of `folder` have shares of processor time; delegates the controller if that is allowed."""
    if PROCESSOR in _listed(folder / "cgroup.controllers") - _listed(folder / SUBTREE):
        with contextlib.suppress(OSError), open(folder / SUBTREE, "a") as file:
            file.write(f" +{PROCESSOR}")
    return PROCESSOR in _listed(folder / SUBTREE)


def _move_processes(here: Path, service: Path) -> None:
    service.mkdir(exist_ok=True)
    for _ in range(MOVES):  # processes may fork meanwhile
        for process in (here / PROCESSES).read_text().split():
            if process != "0":  # a process of another namespace
                with contextlib.suppress(ProcessLookupError):
                    (service / PROCESSES).write_text(process)


def _sweep(parent: str) -> None:
    """Remove old groups of runs that have no processes: the kernel refuses to remove the others."""
    for folder in Path(parent).glob(f"{RUN}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > OLD_SECONDS:
                folder.rmdir()


def _remove(folder: Path) -> None:
    """Kill the processes of a group and remove it. If that fails, the next start of a service tries again."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # it still has processes
            if (folder / "cgroup.kill").exists():  # since Linux 5.14; the supervisor has killed them, too
                (folder / "cgroup.kill").write_text("1")
            time.sleep(PAUSE_SECONDS)


def _listed(file: Path) -> set[str]:
    try:
        return set(file.read_text().split())
    except OSError:
        return set()


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK) and os.access(folder / PROCESSES, os.W_OK)
