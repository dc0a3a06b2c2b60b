"""How much a run really holds, seen from outside: a control group of the test, with the sandbox and its run in it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rlhf.sandbox.groups import RUN, NoGroups, find_parents

EVERY_SECONDS = 0.01


@dataclass(slots=True, kw_only=True)
class Meter:
    """Samples of memory, disk in memory, and processes of what is in the groups of `folders`; the run's own group alone
    where it has one. Without `folders` nothing can be measured."""

    folders: tuple[Path, ...]
    kind: str
    samples: list[tuple[float, int]] = field(default_factory=list)

    def enter(self, process: int) -> None:
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(process))

    def peak(self, baseline: int = 0) -> int:
        return max((amount - baseline for _, amount in self.samples), default=0)

    def seconds_above(self, bound: float, baseline: int = 0) -> float:
        """The longest time without a sample at or below `bound`."""
        longest, since = 0.0, None
        for moment, amount in self.samples:
            since = None if amount - baseline <= bound else since or moment
            longest = max(longest, moment - since if since else 0.0)
        return longest

    def now(self) -> int:
        folder = self.folders[-1 if self.kind == "processes" else 0]
        own = next(folder.glob(f"{RUN}*"), folder) if self.kind != "disk" else folder
        if self.kind == "processes":
            return int((own / "pids.current").read_text())
        about = dict(line.split() for line in (own / "memory.stat").read_text().splitlines())
        shared = int(about.get("total_shmem", 0))
        if self.kind == "disk":
            return shared
        return int((own / "memory.usage_in_bytes").read_text()) - int(about["total_cache"]) + shared


@contextlib.contextmanager
def metered(kind: str) -> Iterator[Meter]:
    """A meter that samples until the end of the block. It measures where cgroup v1 can be written to."""
    with contextlib.suppress(NoGroups):
        parents = find_parents()
        folders = tuple(Path(parent, f"rlhf-meter-{uuid.uuid4().hex}") for parent in parents.folders)
        if parents.version == 1 and os.geteuid() == 0:
            yield from _measured(Meter(folders=folders, kind=kind))
            return
    yield Meter(folders=(), kind=kind)


def _measured(meter: Meter) -> Iterator[Meter]:
    for folder in meter.folders:
        folder.mkdir()
    over = threading.Event()
    sampler = threading.Thread(target=_sample, args=(meter, over))
    sampler.start()
    try:
        yield meter
    finally:
        over.set()
        sampler.join()
        for folder in meter.folders:
            folder.rmdir()


def _sample(meter: Meter, over: threading.Event) -> None:
    while not over.wait(EVERY_SECONDS):
        with contextlib.suppress(OSError, StopIteration):  # the run's group has gone
            meter.samples.append((time.monotonic(), meter.now()))
