"""A rank's part of a checkpoint: copied to host memory while training waits, then written by another thread.

Files of tensors are copied into anonymous memory (`memfd_create`), which ends with the process that holds it, and is
not bounded by the size of `/dev/shm`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from typing import BinaryIO

import psutil

from rlhf.cluster.loop_thread import CallThread
from rlhf.durable import checksum, sync_file
from rlhf.errors import DeadlinePassed, Raised, catch
from rlhf.types import Written

Create = Callable[[Path, int], BinaryIO]
"""Opens a new file that will have this many bytes."""
COPIES = 8
"""Copies that must fit next to everything else: each GPU of a node usually has a rank, and all copy at once."""
BLOCK = 1 << 24
NICENESS = 5
"""Training goes first where cores are few."""
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
        """Have another thread write the copies and sync all files; return what it wrote, by path within `root`. Raises
        its `OSError`, and `DeadlinePassed`, after which the thread writes no more."""
        thread, ended = CallThread("checkpoint"), Event()
        work = partial(write_copies, self._root, self._names, self._copies, ended)
        self._copies = {}
        try:
            written = await thread.run(partial(catch, work), seconds)
        except TimeoutError:
            raise DeadlinePassed(f"the thread that writes {self._root}", seconds) from None
        finally:
            ended.set()
            thread.stop()
        if isinstance(written, Raised):
            raise written.error
        return dict(written)


def write_copies(root: Path, names: Sequence[str], copies: Mapping[str, int], ended: Event) -> dict[str, Written]:
    """Write the copies, by descriptor, to their places, and sync all files; the memory of each is given back at
    once. Raises `InterruptedError` if nobody waits any more."""
    os.nice(NICENESS)  # of this thread
    with ExitStack() as stack:
        sources = {name: stack.enter_context(open(copy, "rb")) for name, copy in copies.items()}
        for name in names:
            if name in sources:
                with sources[name] as source, (root / name).open("wb") as target:
                    source.seek(0)
                    while block := source.read(BLOCK):
                        if ended.is_set():
                            raise InterruptedError(f"{root / name} is not written to its end")
                        target.write(block)
            sync_file(root / name)
    return {name: Written(size=(root / name).stat().st_size, checksum=checksum(root / name)) for name in names}


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
