"""Folders of runs are removed whatever is in them, and what somebody holds stays."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.sandbox.removal import NEW_SECONDS, folder_lock, remove, sweep


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rlhf-test-"))
    yield folder
    if folder.exists():
        remove(str(folder))


def nest(folder: Path, levels: int, name: str, mode: int = 0o700) -> None:
    """Folders within folders, made by descriptors: their path may be longer than any that the kernel takes."""
    where = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=where)
        deeper = os.open(name, os.O_RDONLY, dir_fd=where)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=where))
        os.fchmod(where, mode)
        os.close(where)
        where = deeper
    os.close(where)


@pytest.mark.parametrize(("levels", "name"), [(3000, "a"), (40, "n" * 255), (1200, "b" * 50)])
def test_folders_deeper_than_a_recursion_or_a_path_are_removed(folder: Path, levels: int, name: str) -> None:
    nest(folder, levels, name)
    remove(str(folder))
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0, 0o300, 0o500])
def test_folders_without_rights_are_removed(folder: Path, mode: int) -> None:
    nest(folder, 5, "a", mode)
    remove(str(folder))
    assert not folder.exists()


def test_links_are_removed_and_what_they_lead_to_stays(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (folder / "sub").mkdir()
    (folder / "sub" / "up").symlink_to(tmp_path)
    (folder / "file").symlink_to(tmp_path / "kept")
    (folder / "hard").hardlink_to(tmp_path / "kept")
    os.mkfifo(folder / "pipe")
    remove(str(folder))
    assert (tmp_path / "kept").read_text() == "kept"
    assert not folder.exists()


def test_a_folder_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        remove(str(tmp_path / "link"))
    assert (folder / "kept").exists()


def test_only_what_nobody_holds_and_belongs_to_the_service_is_swept(tmp_path: Path) -> None:
    old = time.time() - NEW_SECONDS - 1
    for name in ("run-left", "run-held", "run-new", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
        if name != "run-new":
            os.utime(tmp_path / name, (old, old))
    with folder_lock(str(tmp_path / "run-held")):
        sweep(str(tmp_path), "run-", {os.geteuid() + 1})
        assert len(list(tmp_path.iterdir())) == 4
        sweep(str(tmp_path), "run-", {os.geteuid()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run-held", "run-new"]


def test_a_folder_keeps_its_rights_until_it_is_removed(folder: Path) -> None:
    with folder_lock(str(folder)), pytest.raises(BlockingIOError), folder_lock(str(folder)):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
