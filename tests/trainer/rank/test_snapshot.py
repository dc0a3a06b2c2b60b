"""A rank's files are copied to memory and written by another thread; what goes wrong there has a name."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest

from rlhf.errors import DeadlinePassed
from rlhf.trainer.rank import snapshot
from rlhf.trainer.rank.snapshot import Snapshot, free_memory
from rlhf.types import Written

SECONDS = 60.0


def taken(root: Path, content: bytes = b"tensors" * 9) -> Snapshot:
    """One file in memory, or on disk where that is short, and one that was written at once."""
    (root / "state").mkdir(parents=True)
    made = Snapshot(root)
    with made.create(root / "state" / "rank-0", len(content)) as file:
        file.write(content)
    (root / "random-0.pt").write_bytes(b"generators")
    made.take([root / "state" / "rank-0", root / "random-0.pt"])
    return made


def reported(content: bytes) -> Written:
    return Written(size=len(content), checksum=blake2b(content, digest_size=16).hexdigest())


@pytest.mark.parametrize("free", [1 << 40, 0])
def test_another_thread_writes_what_was_copied_and_reports_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(snapshot, "free_memory", lambda: free)
    made, before = taken(tmp_path), len(os.listdir("/proc/self/fd"))
    assert (tmp_path / "state" / "rank-0").exists() == (free == 0)
    written = asyncio.run(made.written(SECONDS))
    assert written == {"random-0.pt": reported(b"generators"), "state/rank-0": reported(b"tensors" * 9)}
    assert (tmp_path / "state" / "rank-0").read_bytes() == b"tensors" * 9
    assert len(os.listdir("/proc/self/fd")) == before - (free > 0), "the memory is given back"


def removes_its_folder(root: Path) -> None:
    (root / "state").rmdir()


@pytest.mark.parametrize(
    ("spoil", "seconds", "failure", "told"),
    [
        (removes_its_folder, SECONDS, OSError, os.strerror(errno.ENOENT)),
        (lambda root: None, 0.0, DeadlinePassed, "the thread that writes .* did not answer within 0 s"),
    ],
)
def test_what_goes_wrong_in_the_other_thread_is_raised_here(
    tmp_path: Path, spoil: Callable[[Path], None], seconds: float, failure: type[Exception], told: str
) -> None:
    made = taken(tmp_path)
    spoil(tmp_path)
    with pytest.raises(failure, match=told):
        asyncio.run(made.written(seconds))


def test_memory_is_bounded_by_every_control_group_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    inside.mkdir(parents=True, exist_ok=True)
    for name, text in {"max": "1000", "current": "900", "stat": "anon 500\ninactive_file 300"}.items():
        (inside / f"memory.{name}").write_text(text)
    monkeypatch.setattr(snapshot, "CONTROL_GROUPS", tmp_path)
    assert free_memory() == 400
    (inside / "memory.max").write_text("max")
    assert free_memory() > 400
