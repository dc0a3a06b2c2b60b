"""Control groups: limits on memory, processes and threads that the kernel holds for all of a run together, and a share
of the processor for the run, however many processes and sessions it is.

Shared memory, what lies in pipes and sockets, page tables and files in memory count, whatever a process does to hide
them. cgroup v2 is the way; v1, where only that has the controllers, is a second dialect of the same few files.
Sources: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.
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
"""What groups need, and what they have where it is there."""
RUN, SERVICE = "rlhf-run-", "rlhf-service"
"""Groups of runs, and that of what was in our own group where it has to be empty."""
REMOVE_SECONDS, PAUSE_SECONDS, MOVES = 5.0, 0.002, 16
PROCESSES, SUBTREE = "cgroup.procs", "cgroup.subtree_control"


class NoGroups(Exception):
    """This machine gives this process no groups of its own; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parents:
    """The folders in which each run gets a group: one for v2; for v1 that of memory, that of processes, and that of the
    processor where it is there. `shares`: the kernel parts the processor by run, and not by process."""

    version: int
    folders: tuple[str, ...]
    shares: bool = False

    def __str__(self) -> str:
        return f"cgroup v{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """Descriptors for the supervisor, who does not see the folders. Writing "0" to each of `entrances` moves the writer
    in; `events` counts those that the kernel killed for memory; writing "1" to `end` kills all (None: v1 cannot)."""

    entrances: tuple[int, ...]
    events: int
    end: int | None
    shares: bool = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (*self.entrances, self.events, *(() if self.end is None else (self.end,)))


def find_parents() -> Parents:
    """Where groups of runs can be made. Raises `NoGroups`. Groups that a service which died left behind are removed."""
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
    """This process's group in each hierarchy, by controller, from `/proc/self/cgroup`; v2's is under ""."""
    fields = (line.split(":", 2) for line in text.splitlines())
    return {name: path for _, names, path in fields for name in names.split(",")}


def mounted(text: str) -> dict[str, tuple[str, str]]:
    """Mount point and the group that is seen there, by controller, from `/proc/self/mountinfo`; v2's is under ""."""
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
    """The folder of this process's group of that controller, and the topmost one. Raises `NoGroups`."""
    if name not in own or name not in mounts:
        raise NoGroups(f"no cgroup {'v2' if name == '' else 'v1 of ' + name}")
    point, root = mounts[name]
    inside = os.path.relpath(own[name], root)
    if ".." in inside.split("/"):
        raise NoGroups(f"the cgroup of this process lies outside what is mounted at {point}")
    return Path(point, inside), Path(point)


def _second(own: Mapping[str, str], mounts: Mapping[str, tuple[str, str]]) -> Parents:
    """v2: the nearest group at or above ours that hands the controllers down and may be written to; else ours, whose
    processes move into a group below first, since a group with processes hands nothing down."""
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
    """Whether groups below it have shares of the processor, which it hands down where it may."""
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
    """Raises `OSError`."""
    if (here / "cgroup.type").exists():  # the root of all groups may have processes
        service = here / SERVICE
        service.mkdir(exist_ok=True)
        for _ in range(MOVES):  # they may fork meanwhile
            for process in _members(str(here)):
                with contextlib.suppress(ProcessLookupError):
                    (service / PROCESSES).write_text(str(process))
    (here / SUBTREE).write_text(" ".join(f"+{name}" for name in sorted(CONTROLLERS)))


@contextlib.contextmanager
def group(parents: Parents, limits: SandboxLimits) -> Iterator[ControlGroup]:
    """A group with the limits of one run, which is empty and gone afterwards. Raises `OSError`."""
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
    """File, value, and whether there is no limit without it. Swap comes second: v1 lets it be no less than memory."""
    memory, processes = str(limits.memory_bytes), ("pids.max", str(limits.processes), True)
    if version == 2:
        swap, together = ("memory.swap.max", "0", False), ("memory.oom.group", "1", False)
        return [("memory.max", memory, True), swap, together, processes, ("cpu.weight", "100", False)]
    swap, shares = ("memory.memsw.limit_in_bytes", memory, False), ("cpu.shares", "1024", False)
    return [("memory.limit_in_bytes", memory, True), swap, processes, shares]


def _events(version: int) -> str:
    """The file with a line `oom_kill N`."""
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
    """A group with a lock that says that it has an owner; the kernel takes the lock from an owner that dies."""
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
    """End what is in a group, and remove it. One that stays changes nothing for the run: the next start tries again."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            os.rmdir(folder)
            return
        except FileNotFoundError:
            return
        except OSError:  # somebody is in it
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
    """0, which is a process of another namespace, is left out: to a signal it would mean all of ours."""
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
