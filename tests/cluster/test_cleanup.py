"""What is cleared away at the end of a run, and what is none of its business."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from rlhf.cluster import cleanup as leftovers
from rlhf.cluster.cleanup import Leftovers


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /dev/shm; nothing is killed."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(leftovers, "kill_descendants", lambda: None)
    return tmp_path


def test_segments_of_libraries_that_appeared_meanwhile_are_removed_and_others_stay(shared_memory: Path) -> None:
    (shared_memory / "psm_before").touch()
    remembered = Leftovers()
    for name in ("psm_new", "somebody"):
        (shared_memory / name).touch()
    remembered.remove()
    assert {path.name for path in shared_memory.iterdir()} == {"psm_before", "somebody"}


def test_a_segment_of_another_user_is_left_to_them(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = Leftovers()
    (shared_memory / "psm_theirs").touch()

    def forbidden(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", forbidden)
    remembered.remove()


@pytest.mark.skipif(not leftovers.SHARED_MEMORY.is_dir(), reason="shared memory is not in /dev/shm here")
def test_a_semaphore_of_another_program_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes one maps it under a passing name, and may be its only holder for a while."""
    monkeypatch.setattr(leftovers, "kill_descendants", lambda: None)
    remembered = Leftovers()
    theirs = multiprocessing.get_context("spawn").Semaphore()
    remembered.remove()
    assert f"sem.{theirs._semlock.name.removeprefix('/')}" in leftovers._segments()  # type: ignore[attr-defined]
