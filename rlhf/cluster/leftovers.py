"""Find and remove what a run leaves behind: its processes, their shared memory and its temporary files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
KILL_SECONDS = 5.0
OWNED_BY_LIBRARIES = ("psm_", "sem.mp-", "torch_", "nccl-", "__KMP_REGISTERED_LIB_", "sem.loky-", "plasma")
"""Name prefixes used by Python, torch, NCCL, OpenMP and Ray. A new segment with such a name that no process holds is
removed, also if the process that made it has ended."""


class Leftovers:
    """Processes and shared memory of a run, which appear after the construction, and `scratch`, its temporary files.

    A process belongs to the run if it descends from this process, which should be a subreaper so that this includes
    daemons, or if it was started with `TMPDIR=scratch`.
    """

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._before = _segments()

    def remove(self) -> None:
        """Kill every process of the run, then unlink the segments that they held, or that libraries made, and that no
        process holds any more."""
        new = _segments() - self._before
        held_by_run = _held_by(process.pid for process in self.processes()) if new else set()
        self._kill()
        gone = {name for name in new if name in held_by_run or name.startswith(OWNED_BY_LIBRARIES)}
        for name in gone - _held_by(psutil.pids()) if gone else ():
            with contextlib.suppress(FileNotFoundError, PermissionError):  # already gone, or another user's
                (SHARED_MEMORY / name).unlink()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _kill(self) -> None:
        """Send SIGKILL and reap, and repeat while new processes appear, for a bounded time."""
        deadline = time.monotonic() + KILL_SECONDS
        while (alive := self.processes()) and time.monotonic() < deadline:
            for process in alive:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            reap_all()
            time.sleep(0.02)

    def processes(self) -> set[psutil.Process]:
        """Return the living processes of the run, on this machine."""
        return {*psutil.Process().children(recursive=True), *filter(self._is_marked, psutil.process_iter())}

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return process.pid != os.getpid() and bool(process.environ().get("TMPDIR") == str(self.scratch))
        except psutil.Error:  # it has ended, or is another user's
            return False


def reap_all() -> dict[int, int]:
    """Reap every child that has ended, adopted ones too. Return their wait statuses by process id."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask the leader of a process group to end; kill the group after `seconds`."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _segments() -> set[str]:
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


def _held_by(pids: Iterable[int]) -> set[str]:
    """Return the names under /dev/shm that these processes map or have open. They are compared by inode, because the
    creator of a semaphore maps it under a temporary name."""
    inodes = {inode for pid in pids for inode in _shared_inodes(pid)}
    return {entry.name for entry in os.scandir(SHARED_MEMORY) if entry.inode() in inodes}


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
