"""Control groups: kernel limits on memory, processes and threads of a whole run, and a fair share of CPU time per run.

The limits include shared memory, pipe and socket buffers, page tables and files in memory, even if a process hides
them. The share of CPU time does not depend on the number of processes and sessions. cgroup v2 is preferred; v1 is used
if only that has the controllers. Sources: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and
`cgroup-v1/memory.rst`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.removal import NEW_SECONDS, folder_lock

CONTROLLERS, PROCESSOR = frozenset({"memory", "pids"}), "cpu"
"""Required controllers, and an optional one."""
RUN, SERVICE = "rlhf-run-", "rlhf-service"
"""Name prefix of the groups of runs, and the name of the group for processes that must leave our own group."""
REMOVE_SECONDS, PAUSE_SECONDS, MOVES = 5.0, 0.002, 16
PROCESSES, SUBTREE = "cgroup.procs", "cgroup.subtree_control"


class NoGroups(Exception):
    """This process cannot make control groups on this machine; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parents:
    """The folders in which each run gets a group. For v2 there is one; for v1 one each for memory, processes and, if
    available, CPU. `shares` says that the kernel divides CPU time by run and not by process."""

    version: int
    folders: tuple[str, ...]
    shares: bool = False

    def __str__(self) -> str:
        return f"cgroup v{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """File descriptors for the supervisor, which does not see the folders. Writing "0" to each of `entrances` moves the
    writer into the group. `events` counts processes that the kernel killed for memory use. Writing "1" to `end` kills
    all processes of the group (None in v1, which does not support it)."""

    entrances: tuple[int, ...]
    events: int
    end: int | None
    shares: bool = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All file descriptors of the group."""
        return (*self.entrances, self.events, *(() if self.end is None else (self.end,)))


def find_parents() -> Parents:
    """Find where groups of runs can be made, and remove groups that dead services left behind. Raises `NoGroups`."""
    own = own_groups(Path("/proc/self/cgroup").read_text())
    mounts = mounted(Path("/proc/self/mountinfo").read_text())
    reasons = []
    for dialect in (_second, _first):
        try:
            parents = dialect(own, mounts)
        except (OSError, NoGroups) as error:
            reasons.append(str(error))
        else:
            _sweep(parents)
            return parents
    raise NoGroups("; ".join(reasons))


def own_groups(text: str) -> dict[str, str]:
    """This process's group by controller, from `/proc/self/cgroup`; the key of v2 is ""."""
    fields = (line.split(":", 2) for line in text.splitlines())
    return {name: path for _, names, path in fields for name in names.split(",")}


def mounted(text: str) -> dict[str, tuple[str, str]]:
    """Mount point and the group mounted there, by controller, from `/proc/self/mountinfo`; the key of v2 is ""."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split(" ")[3:5]
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            for name in ("",) if kind == "cgroup2" else options.split(","):
                found[name] = (point, root)
    return found


def cgroup_folder(name: str, own: Mapping[str, str], mounts: Mapping[str, tuple[str, str]]) -> tuple[Path, Path]:
    """The folder of this process's group for that controller, and the topmost folder. Raises `NoGroups`."""
    if name not in own or name not in mounts:
        raise NoGroups(f"no cgroup {'v2' if name == '' else 'v1 of ' + name}")
    point, root = mounts[name]
    inside = os.path.relpath(own[name], root)
    if ".." in inside.split("/"):
        raise NoGroups(f"the cgroup of this process lies outside what is mounted at {point}")
    return Path(point, inside), Path(point)


def _second(own: Mapping[str, str], mounts: Mapping[str, tuple[str, str]]) -> Parents:
    """For v2: the nearest group at or above ours that delegates the controllers and is writable. If there is none, our
    own group, whose processes are moved to a child group first, because a group with processes cannot delegate
    controllers."""
    here, top = cgroup_folder("", own, mounts)
    above = [folder for folder in (here, *here.parents) if folder.is_relative_to(top)]
    for folder in above:
        if _listed(folder / SUBTREE) >= CONTROLLERS and _writable(folder):
            return Parents(version=2, folders=(str(folder),), shares=_parts_processor(folder))
    if not _listed(here / "cgroup.controllers") >= CONTROLLERS:
        raise NoGroups(f"cgroup v2 has no controllers of memory and processes in {here}")
    if not (_writable(here) and os.access(here / SUBTREE, os.W_OK)):
        raise NoGroups(f"cgroup v2: {here} cannot be written to (start it with systemd-run --user -p Delegate=yes)")
    _hand_down(here)
    return Parents(version=2, folders=(str(here),), shares=_parts_processor(here))


def _parts_processor(folder: Path) -> bool:
    """Whether child groups of `folder` have CPU shares; delegates the CPU controller if allowed."""
    if PROCESSOR in _listed(folder / "cgroup.controllers") - _listed(folder / SUBTREE):
        with contextlib.suppress(OSError), open(folder / SUBTREE, "a") as file:
            file.write(f" +{PROCESSOR}")
    return PROCESSOR in _listed(folder / SUBTREE)


def _first(own: Mapping[str, str], mounts: Mapping[str, tuple[str, str]]) -> Parents:
    folders = [cgroup_folder(name, own, mounts)[0] for name in ("memory", "pids")]
    for folder in folders:
        if not _writable(folder):
            raise NoGroups(f"cgroup v1: {folder} cannot be written to")
    with contextlib.suppress(NoGroups):
        processor = cgroup_folder(PROCESSOR, own, mounts)[0]
        folders += [processor] if _writable(processor) else []
    shares = len(folders) > len(CONTROLLERS)
    return Parents(version=1, folders=tuple(dict.fromkeys(map(str, folders))), shares=shares)


def _hand_down(here: Path) -> None:
    """Delegate the controllers to child groups. Raises `OSError`."""
    if (here / "cgroup.type").exists():  # the root group may have processes
        service = here / SERVICE
        service.mkdir(exist_ok=True)
        for _ in range(MOVES):  # processes may fork meanwhile
            for process in _members(str(here)):
                with contextlib.suppress(ProcessLookupError):
                    (service / PROCESSES).write_text(str(process))
    (here / SUBTREE).write_text(" ".join(f"+{name}" for name in sorted(CONTROLLERS)))


@contextlib.contextmanager
def group(parents: Parents, limits: SandboxLimits) -> Iterator[ControlGroup]:
    """A group with the limits of one run; at the end its processes are killed and it is removed. Raises `OSError`."""
    name = f"{RUN}{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(_made(f"{parent}/{name}")) for parent in parents.folders]
        for file, value, needed in _settings(parents.version, limits):
            _set([f"{folder}/{file}" for folder in made], value, needed)
        yield ControlGroup(
            entrances=tuple(stack.enter_context(_opened(f"{folder}/{PROCESSES}", os.O_WRONLY)) for folder in made),
            events=stack.enter_context(_opened(f"{made[0]}/{_events(parents.version)}", os.O_RDONLY)),
            end=stack.enter_context(_opened(f"{made[0]}/cgroup.kill", os.O_WRONLY))
            if os.path.exists(f"{made[0]}/cgroup.kill")
            else None,
            shares=parents.shares,
        )


def _settings(version: int, limits: SandboxLimits) -> list[tuple[str, str, bool]]:
    """File, value, and whether the limit needs this file. Swap comes second: in v1 it must not be lower than memory."""
    memory, processes = str(limits.memory_bytes), ("pids.max", str(limits.processes), True)
    if version == 2:
        swap, together = ("memory.swap.max", "0", False), ("memory.oom.group", "1", False)
        return [("memory.max", memory, True), swap, together, processes, ("cpu.weight", "100", False)]
    swap, shares = ("memory.memsw.limit_in_bytes", memory, False), ("cpu.shares", "1024", False)
    return [("memory.limit_in_bytes", memory, True), swap, processes, shares]


def _events(version: int) -> str:
    """The file with the line `oom_kill N`."""
    return "memory.events" if version == 2 else "memory.oom_control"


def _set(places: list[str], value: str, needed: bool) -> None:
    there = [place for place in places if os.path.exists(place)]
    if needed and not there:
        raise FileNotFoundError(f"no {places[0]}")
    for place in there:
        with open(place, "w") as file:
            file.write(value)


@contextlib.contextmanager
def _made(folder: str) -> Iterator[str]:
    """A new group with a lock that marks it as in use; the kernel releases the lock when the owner dies."""
    os.mkdir(folder)
    with folder_lock(folder):
        try:
            yield folder
        finally:
            _remove(folder)


def _sweep(parents: Parents) -> None:
    for parent in parents.folders:
        for name in os.listdir(parent):
            if name.startswith(RUN):
                with contextlib.suppress(OSError), folder_lock(folder := f"{parent}/{name}"):
                    if time.time() - os.stat(folder).st_mtime > NEW_SECONDS:
                        _remove(folder)


def _remove(folder: str) -> None:
    """Kill the processes of a group and remove it. If that fails, the next start of a service tries again."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            os.rmdir(folder)
            return
        except FileNotFoundError:
            return
        except OSError:  # it still has processes
            _end(folder)
            time.sleep(PAUSE_SECONDS)


def _end(folder: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.exists(f"{folder}/cgroup.kill"):
            Path(folder, "cgroup.kill").write_text("1")
            return
        for process in _members(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _members(folder: str) -> list[int]:
    """Process ids of the group, without 0 (a process of another namespace): `kill(0)` would signal our own process
    group."""
    return [number for line in Path(folder, PROCESSES).read_text().split() if (number := int(line)) > 0]


def _listed(file: Path) -> set[str]:
    try:
        return set(file.read_text().split())
    except OSError:
        return set()


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK) and os.access(folder / PROCESSES, os.W_OK)


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
