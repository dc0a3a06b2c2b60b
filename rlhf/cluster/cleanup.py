"""Finds (through /proc) and removes what a process tree leaves behind: its processes and their shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
KILL_SECONDS = 5.0
LOOKS = 4
"""Number of attempts to find a new segment's owner before the segment counts as another program's."""
OWNED_BY_LIBRARIES = ("psm_", "sem.mp-", "torch_", "nccl-", "__KMP_REGISTERED_LIB_", "sem.loky-", "plasma")
"""Name prefixes used by Python, torch, NCCL, OpenMP and Ray. A new segment with such a name that no process holds is
removed."""


class Leftovers:
    """Records which shared memory segments this process's descendants hold, and removes all of them at the end."""

    def __init__(self) -> None:
        self._before = _segments()
        self._looks: dict[str, int] = {}
        self._ours: set[str] = set()

    def notice(self) -> None:
        """Find the owners of segments that appeared since the start; cheap while there are none."""
        for name in _segments() - self._before:
            self._looks[name] = self._looks.get(name, 0) + 1
        unknown = {name for name, looks in self._looks.items() if looks <= LOOKS} - self._ours
        if unknown:
            self._ours |= unknown & _held_by(descendants(os.getpid()))

    def remove(self) -> None:
        """Kill every descendant, and unlink the segments that belonged to them and that no process holds any more."""
        self.notice()
        kill_descendants()
        new = _segments() - self._before
        gone = {name for name in new if name in self._ours or name.startswith(OWNED_BY_LIBRARIES)}
        for name in gone - _held_by(_all_processes()) if gone else ():
            with contextlib.suppress(FileNotFoundError, PermissionError):  # already gone, or another user's
                (SHARED_MEMORY / name).unlink()


def kill_descendants() -> None:
    """Send SIGKILL to all processes below this one and reap them; repeat while new ones appear, for a bounded time."""
    deadline = time.monotonic() + KILL_SECONDS
    while (alive := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in alive:
            _kill(pid)
        _reap_all()
        time.sleep(0.02)


def descendants(root: int) -> list[int]:
    """Every process below `root`, zombies included, parents before children."""
    children: dict[int, list[int]] = {}
    for pid in _all_processes():
        children.setdefault(_parent(pid), []).append(pid)
    found, below = [], [root]
    while below:
        below = [child for pid in below for child in children.get(pid, ())]
        found += below
    return found


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _segments() -> set[str]:
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


def _held_by(pids: Iterable[int]) -> set[str]:
    """Names under /dev/shm that these processes map or have open. Compared by inode, because the creator of a semaphore
    maps it under a temporary name."""
    held = {inode for pid in pids for inode in _shared_inodes(pid)}
    return {entry.name for entry in os.scandir(SHARED_MEMORY) if entry.inode() in held}


def _shared_inodes(pid: int) -> Iterator[int]:
    mark = f"{SHARED_MEMORY}/"
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if mark in line:
                yield int(line.split()[4])
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(link).startswith(mark):
                yield link.stat().st_ino
    except OSError:
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap_all() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
