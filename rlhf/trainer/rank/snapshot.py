"""A rank's part of a checkpoint: copied to host memory while training waits, then written by another process.

Files of tensors are copied into anonymous memory (`memfd_create`), which ends with the processes that hold it, and is
not bounded by the size of `/dev/shm`. The process is a new program: a fork of one with CUDA or gloo may hang.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import psutil

from rlhf.errors import CheckpointError, DeadlinePassed
from rlhf.types import Written

Create = Callable[[Path, int], BinaryIO]
"""Opens a new file that will have this many bytes."""
COPIES = 8
"""Copies that must fit next to everything else: each GPU of a node usually has a rank, and all copy at once."""
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def on_disk(file: Path, size: int) -> BinaryIO:
    """Open a new file in its place."""
    return file.open("wb")


class Snapshot:
    """Files of a rank below `root`, from their copy until they are on disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: list[str] = []
        self._copies: dict[str, int] = {}

    def create(self, file: Path, size: int) -> BinaryIO:
        """Open a new file in host memory; in its place where memory is short."""
        if COPIES * size > free_memory():
            return on_disk(file, size)
        copy = self._copies[str(file.relative_to(self._root))] = os.memfd_create(file.name)
        return open(copy, "wb", closefd=False)

    def take(self, files: Iterable[Path]) -> None:
        """Name all files of the snapshot, those on disk too."""
        self._names = sorted({str(file.relative_to(self._root)) for file in files})

    async def written(self, seconds: float) -> dict[str, Written]:
        """Have another process write the copies and sync all files; return what it wrote, by path within `root`.

        It is killed after `seconds`, and with this process. Raises its `OSError`, `CheckpointError`, `DeadlinePassed`.
        """
        request = json.dumps([str(self._root), {name: self._copies.get(name) for name in self._names}])
        try:
            process = subprocess.Popen(
                [sys.executable, "-S", "-m", f"{__name__}_writer", str(os.getpid())],
                pass_fds=list(self._copies.values()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
            )
            try:
                answer, _ = await asyncio.to_thread(process.communicate, request.encode(), seconds)
            except subprocess.TimeoutExpired:
                raise DeadlinePassed(f"the process that writes {self._root}", seconds) from None
            finally:
                process.kill()  # has no effect on one that has ended
        finally:
            for copy in self._copies.values():
                os.close(copy)
            self._copies.clear()
        if process.returncode:
            raise CheckpointError(f"the process that writes {self._root} ended with code {process.returncode}")
        found = json.loads(answer)
        if "failed" in found:
            raise OSError(*found["failed"])
        return {name: Written(**one) for name, one in found["written"].items()}


def free_memory() -> int:
    """Return the bytes of host memory that this process may still take, by its control groups (version 2) too."""
    free = int(psutil.virtual_memory().available)
    inside = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    for group in (CONTROL_GROUPS / inside, *(CONTROL_GROUPS / inside).parents):
        limit = group / "memory.max"
        if limit.is_file() and (most := limit.read_text().strip()).isdecimal():
            states = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text()) - int(states["inactive_file"])  # cache is given back
            free = min(free, int(most) - used)
    return free
