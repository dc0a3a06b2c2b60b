"""Finds, measures and ends the processes that a run started."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterator

from rlhf.sandbox.run_request import Jail

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
REAP_SECONDS = 10.0
PAUSE_SECONDS = 0.002


IN_A_PIPE, IN_A_SOCKET = 64 * 1024, 208 * 1024
"""The most that a pipe or a socket can buffer: the program in the jail cannot enlarge it."""


class Survivors(Exception):
    """Some processes of a run did not end."""


class Unmeasured(Exception):
    """A part of a run cannot be measured; the message names it."""


def own_descendants() -> list[int]:
    """All processes below this one; the supervisor adopts orphans."""
    found = list(_children(os.getpid()))
    for process in found:  # the list grows during the loop
        found += _children(process)
    return found


def memory_bytes(processes: list[int], worth_exactness: int) -> int:
    """What they hold together, as far as it can be seen; pages that they share count once where the cheap sum exceeds
    `worth_exactness`. What lies in pipes and sockets is taken for the most that it can be, and what a process hides for
    sockets."""
    seen, hiding = _open_files(processes)
    kernel = sum(IN_A_PIPE for about in seen if stat.S_ISFIFO(about.st_mode))
    kernel += IN_A_SOCKET * sum(stat.S_ISSOCK(about.st_mode) for about in seen)
    kernel += IN_A_SOCKET * sum(_descriptors(process) for process in hiding)
    total = sum(_resident(process) for process in processes) + kernel
    return total if total <= worth_exactness else sum(_share(process) for process in processes) + kernel


def threads(processes: list[int]) -> int:
    """Number of threads of the processes."""
    return sum(len(_listing(f"/proc/{process}/task")) for process in processes)


def oom_killed(events: int) -> bool:
    """Whether the kernel killed a process of the run for its memory use, read from the event file of its control
    group."""
    lines = os.pread(events, 4096, 0).decode().splitlines()
    return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)


def nameless_bytes(processes: list[int], folder: str, trusted: int | None = None) -> int:
    """Size of the files without a name that they hold. Raises `Unmeasured` where that cannot be seen, of any but the
    process that is `trusted`."""
    seen, hiding = _open_files(processes)
    if hiding - {trusted}:
        raise Unmeasured("a process that hides what it holds")
    held = {about.st_ino: about.st_blocks * 512 for about in seen if about.st_nlink == 0}
    for process in processes:
        for line in _read(f"/proc/{_alive(process)}/maps").split("\n")[:-1]:
            _, _, _, _, inode, *name = line.split(maxsplit=5)
            deleted = name and name[0].startswith(folder) and name[0].endswith(" (deleted)")
            if deleted and int(inode) not in held and not _has_name(name[0], int(inode)):
                raise Unmeasured("a file that only a mapping holds")
    return sum(held.values())


def _has_name(path: str, inode: int) -> bool:
    """Whether the file is there after all: names may end with what the kernel writes behind those of deleted files."""
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False


def end_all(jail: Jail) -> None:
    """Kill all processes of the run, and wait until they have ended. Raises `Survivors`."""
    deadline = time.monotonic() + REAP_SECONDS
    while True:
        _kill(jail)
        if not any(True for _ in reaped()) and not _has_children():
            return
        if time.monotonic() > deadline:
            raise Survivors(f"{len(own_descendants())} processes of the run did not end within {REAP_SECONDS:g} s")
        time.sleep(PAUSE_SECONDS)


def reaped() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended; yields each with its wait status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _kill(jail: Jail) -> None:
    if jail.end is not None:
        os.write(jail.end, b"1")
    if jail.alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # every process of the namespace except its first one
    elif jail.uid is not None:
        for uid in (jail.uid, jail.second_uid):
            _kill_user(jail.uid if uid is None else uid)
    else:
        for process in own_descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _kill_user(uid: int) -> None:
    """Kill all processes of that user in one call, so that no fork can escape."""
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


def _open_files(processes: list[int]) -> tuple[list[os.stat_result], set[int]]:
    """The files that any thread of the processes has open, each once, and the processes that hide theirs."""
    found: dict[tuple[int, int], os.stat_result] = {}
    hiding: set[int] = set()
    for process in processes:
        for task in _listing(f"/proc/{process}/task"):
            folder = f"/proc/{process}/task/{task}/fd"
            try:
                descriptors = os.listdir(folder)
            except PermissionError:  # a thread that has ended looks so too
                hiding |= {process} if _pages(f"{process}/task/{task}") else set()
                continue
            except OSError:
                continue
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    about = os.stat(f"{folder}/{descriptor}")
                    found[about.st_dev, about.st_ino] = about
    return list(found.values()), hiding


def _descriptors(process: int) -> int:
    """The number of open files of a process that hides them: the size of `/proc/PID/fd` since Linux 6.2, else that of
    its descriptor table, an upper bound."""
    with contextlib.suppress(OSError):
        if size := os.stat(f"/proc/{process}/fd").st_size:
            return size
    lines = _read(f"/proc/{_alive(process)}/status").split("\n")
    return next((int(line.split()[1]) for line in lines if line.startswith("FDSize:")), 0)


def _alive(process: int) -> str:
    """A thread of the process that still runs: the first thread may end before the others, and then has no
    information."""
    if _pages(str(process)):
        return str(process)
    tasks = (f"{process}/task/{task}" for task in _listing(f"/proc/{process}/task"))
    return next((task for task in tasks if _pages(task)), str(process))


def _pages(process: str) -> int:
    """Number of resident pages; at least 1 for a process that has memory."""
    fields = _read(f"/proc/{process}/statm").split()
    return max(int(fields[1]), int(int(fields[0]) > 0)) if fields else 0


def _resident(process: int) -> int:
    return _pages(_alive(process)) * PAGE_BYTES


def _share(process: int) -> int:
    for line in _read(f"/proc/{_alive(process)}/smaps_rollup").split("\n"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return _resident(process)  # the process hides its maps


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has ended, or hides this
        return []


def _read(path: str) -> str:
    """The lines of a file under `/proc`. Names in it are arbitrary bytes; only "\\n" ends a line."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return file.read()
    except OSError:
        return ""
