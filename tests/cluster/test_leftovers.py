"""The end of a run removes its processes and its shared memory, and nothing of other programs."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from rlhf.cluster import leftovers
from rlhf.cluster.leftovers import Leftovers
from tests.pace import scaled


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /dev/shm; nothing is killed."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(Leftovers, "_kill", lambda self: None)
    return tmp_path


def test_segments_of_libraries_that_appeared_meanwhile_are_removed_and_others_stay(shared_memory: Path) -> None:
    (shared_memory / "psm_before").touch()
    remembered = Leftovers(Path("/no/such/folder"))
    for name in ("psm_new", "somebody"):
        (shared_memory / name).touch()
    remembered.remove()
    assert {path.name for path in shared_memory.iterdir()} == {"psm_before", "somebody"}


def test_a_segment_of_another_user_is_left_to_them(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = Leftovers(Path("/no/such/folder"))
    (shared_memory / "psm_theirs").touch()

    def forbidden(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", forbidden)
    remembered.remove()


@pytest.mark.skipif(not leftovers.SHARED_MEMORY.is_dir(), reason="shared memory is not in /dev/shm here")
def test_a_semaphore_of_another_program_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes one maps it under a passing name, and may be its only holder for a while."""
    monkeypatch.setattr(Leftovers, "_kill", lambda self: None)
    remembered = Leftovers(Path("/no/such/folder"))
    theirs = multiprocessing.get_context("spawn").Semaphore()
    remembered.remove()
    assert f"sem.{theirs._semlock.name.removeprefix('/')}" in leftovers._segments()  # type: ignore[attr-defined]


@pytest.mark.skipif(not leftovers.SHARED_MEMORY.is_dir(), reason="shared memory is not in /dev/shm here")
@pytest.mark.waits
def test_a_process_of_the_run_goes_with_the_segment_that_it_holds_under_any_name(tmp_path: Path) -> None:
    segment = leftovers.SHARED_MEMORY / f"any-{uuid.uuid4().hex}"
    holding = f"import sys; held = open({str(segment)!r}, 'w'); print('held', flush=True); sys.stdin.read()"
    command = ["setsid", "--fork", "env", f"TMPDIR={tmp_path}", sys.executable, "-c", holding]
    program = f"""
import subprocess
from pathlib import Path
from rlhf.cluster.leftovers import Leftovers
leftovers = Leftovers(Path({str(tmp_path)!r}))
started = subprocess.Popen({command!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert started.stdout.readline() == b"held\\n"
leftovers.remove()
assert started.stdout.read() == b"", "the daemon was killed"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(30))
    assert not segment.exists()
