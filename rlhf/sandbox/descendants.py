"""The processes that a run started: how many, how large, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from rlhf.sandbox.orders import Cage

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
REAP_SECONDS = 10.0
PAUSE_SECONDS = 0.002


class Survivors(Exception):
    """Processes of a run that would not end."""


def descendants(of: int | None = None) -> list[int]:
    """Every process below `of` (this one, when None), its whole tree; orphans have come up to the warden."""
    found: list[int] = []
    for child in _children(os.getpid() if of is None else of):
        found += [child, *descendants(child)]
    return found


def memory_bytes(processes: list[int], worth_exactness: int) -> int:
    """What they really use together; pages that they share count once where the cheap sum exceeds `worth_exactness`."""
    total = sum(_resident(process) for process in processes)
    return total if total <= worth_exactness else sum(_share(process) for process in processes)


def threads(processes: list[int]) -> int:
    return sum(len(_listing(f"/proc/{process}/task")) for process in processes)


def unlinked_bytes(processes: list[int]) -> int:
    """Size of the files without a name that they hold open."""
    held = {}
    for process in processes:
        for descriptor in _listing(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                about = os.stat(f"/proc/{process}/fd/{descriptor}")
                if about.st_nlink == 0:
                    held[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(held.values())


def end_all(cage: Cage) -> None:
    """Kill whatever is left of the run, and wait until it is gone. Raises `Survivors`."""
    deadline = time.monotonic() + REAP_SECONDS
    while True:
        _kill(cage)
        if not any(True for _ in reaped()) and not _has_children():
            return
        if time.monotonic() > deadline:
            raise Survivors(f"{len(descendants())} processes of the run did not end within {REAP_SECONDS:g} s")
        time.sleep(PAUSE_SECONDS)


def reaped() -> Iterator[tuple[int, int]]:
    """The children that have ended, each with its wait status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _kill(cage: Cage) -> None:
    if cage.alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all of the namespace, but not its first process
    elif cage.uid is not None:
        for uid in (cage.uid, cage.second_uid):
            _kill_user(cage.uid if uid is None else uid)
    else:
        for process in descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _kill_user(uid: int) -> None:
    """As that user, kill all that it may, in one call that no fork can outrun."""
    if (child := os.fork()) == 0:
        os.setresuid(uid, uid, uid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children(process: int) -> Iterator[int]:
    for task in _listing(f"/proc/{process}/task"):
        yield from map(int, _read(f"/proc/{process}/task/{task}/children").split())


def _resident(process: int) -> int:
    fields = _read(f"/proc/{process}/statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def _share(process: int) -> int:
    for line in _read(f"/proc/{process}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return _resident(process)  # it hides its maps


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process is gone, or hides it
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
