"""500 updates: no process grows, and there are no more descriptors, threads, sessions or segments than at update 50."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf.cluster.leftovers import SHARED_MEMORY, _held_by
from tests.end_to_end.running import QUICKSTART, ROOT, command, environment
from tests.end_to_end.test_clean_ends import MARK, marked
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]

UPDATES, EARLY, LATE = 510, range(50, 60), range(490, 500)
"""Windows of updates: what is held for a moment is left out by the least of the late window beside the most of the
early one."""
MEBI = 2**20
NOISE = 12.0
"""MiB that the resident memory of a process may differ by: the allocator keeps what it was asked for most."""
LATE_THREADS = 2
"""A bounded pool makes its last threads when it is first that busy; a leak in every save would be 22."""
TINY = (
    f"trainer.updates={UPDATES}", "trainer.groups_per_update=2", "trainer.group_size=2", "sampling.max_tokens=4",
    "trainer.eval_every=25", "data.eval.arguments.rows=4", "trainer.save_every=20", "trainer.failure_budget=1",
    "model.warmup.updates=25", "cluster.kind=ray", "rollout.engines=2", "rollout.cpus_per_engine=0.5",
    "trainer.deepspeed.cpus_per_rank=0.5", "trainer.weight_sync.verify_at_start=false",
    "cluster.placement_timeout_seconds=300",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one process holds, at its most or its least in a window."""

    name: str
    mebibytes: float
    descriptors: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The run in a window of updates: its processes by id, its Ray sessions, and names under /dev/shm."""

    processes: Mapping[int, Held]
    sessions: int
    segments: frozenset[str]


def test_500_updates_leave_every_process_as_it_was_at_update_50(tmp_path: Path, cache: Path) -> None:
    with (tmp_path / "output.txt").open("w") as stream:
        process = subprocess.Popen(
            command("train", str(QUICKSTART), f"run.dir={tmp_path / 'run'}", f"model.cache_dir={cache}", *TINY),
            cwd=ROOT, env=environment() | {MARK: str(tmp_path / "run")}, stdout=stream, stderr=stream,
        )  # fmt: skip
    try:
        early = list(window(process, tmp_path, EARLY))
        late = list(window(process, tmp_path, LATE))
        assert process.wait(scaled(120)) == 0, (tmp_path / "output.txt").read_text()[-3000:]
    finally:
        for left in marked(tmp_path / "run"):
            left.kill()
    before, after = bound(early, max), bound(late, min)
    for pid, held in after.processes.items():
        print(before.processes.get(pid), "->", held)
    print(f"sessions {before.sessions} -> {after.sessions}, segments {before.segments} -> {after.segments}")
    grown = [
        f"{was} -> {held}"
        for pid, held in after.processes.items()
        if (was := before.processes.get(pid)) is None
        or held.mebibytes > was.mebibytes + NOISE
        or held.descriptors > was.descriptors
        or held.threads > was.threads + LATE_THREADS
    ]
    assert not grown, "\n".join(grown)
    assert after.processes.keys() == before.processes.keys()
    assert after.sessions == before.sessions == 1
    strangers = {name.pid for name in psutil.process_iter()} - after.processes.keys()
    assert after.segments - before.segments <= _held_by(strangers)


def window(process: subprocess.Popen[bytes], place: Path, updates: range) -> Iterator[Seen]:
    """Look at the run after each of these updates, or a little later."""
    metrics, output = place / "run" / "metrics.jsonl", place / "output.txt"
    for update in updates:
        deadline = time.monotonic() + scaled(1800)
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= update):
            assert process.poll() is None, output.read_text()[-3000:]
            assert time.monotonic() < deadline, f"update {update} was awaited"
            time.sleep(0.05)
        yield seen(place / "run")


def seen(run: Path) -> Seen:
    processes = {one.pid: held for one in marked(run) if (held := held_by(one))}
    scratch = {Path(folder) for one in marked(run) if (folder := one.environ().get("TMPDIR"))}
    return Seen(
        processes=processes,
        sessions=sum(len(list(folder.glob("ray-*/session_2*"))) for folder in scratch),
        segments=frozenset(os.listdir(SHARED_MEMORY)),
    )


def held_by(process: psutil.Process) -> Held | None:
    """None for a process that has ended."""
    try:
        with process.oneshot():
            return Held(
                name=" ".join(process.cmdline())[:120] or process.name(),
                mebibytes=process.memory_info().rss / MEBI,
                descriptors=process.num_fds(),
                threads=process.num_threads(),
            )
    except psutil.NoSuchProcess:
        return None


def bound(several: list[Seen], most: Callable[..., Any]) -> Seen:
    """The processes that were there the whole time, each with its most or its least of everything."""
    lasting = set.intersection(*(set(one.processes) for one in several))
    return Seen(
        processes={
            pid: Held(
                name=several[0].processes[pid].name,
                mebibytes=most(one.processes[pid].mebibytes for one in several),
                descriptors=most(one.processes[pid].descriptors for one in several),
                threads=most(one.processes[pid].threads for one in several),
            )
            for pid in lasting
        },
        sessions=most(one.sessions for one in several),
        segments=frozenset.intersection(*(one.segments for one in several)),
    )
