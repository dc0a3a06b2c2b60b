"""The folder of a run is removed with any content, measured, and read without following links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.sandbox.folder import NotFetched, folder_use, read_files, remove_folder
from rlhf.sandbox.run_request import Jail


@pytest.fixture
def jail(tmp_path: Path) -> Iterator[Jail]:
    """A jail whose folder shares a file system."""
    (tmp_path / "run").mkdir()
    jail = Jail(folder=str(tmp_path / "run"), uid=None, landlock=False, filtered=False, alone=False, sized=False)
    yield jail
    remove_folder(jail)
    assert not Path(jail.folder).exists()


def nest(folder: str, levels: int, name: str, mode: int) -> None:
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


@pytest.mark.parametrize(
    ("levels", "name", "mode"),
    [(1200, "a", 0o700), (40, "n" * 255, 0o700), (5, "a", 0), (5, "a", 0o300), (5, "a", 0o500), (60, "n" * 200, 0)],
)
def test_folders_of_any_depth_and_rights_are_removed(jail: Jail, levels: int, name: str, mode: int) -> None:
    nest(jail.folder, levels, name, mode)


def test_links_are_removed_and_what_they_lead_to_stays(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    folder = Path(jail.folder)
    (folder / "up").symlink_to(tmp_path)
    (folder / "file").symlink_to(tmp_path / "kept")
    (folder / "hard").hardlink_to(tmp_path / "kept")
    (folder / "closed").mkdir(0)
    remove_folder(jail)
    assert (tmp_path / "kept").read_text() == "kept"
    assert os.access(tmp_path / "kept", os.R_OK)


def test_bytes_and_entries_are_counted_at_any_depth(jail: Jail) -> None:
    (Path(jail.folder) / "a" / "b").mkdir(parents=True)
    (Path(jail.folder) / "a" / "b" / "file").write_bytes(bytes(1 << 20))
    (Path(jail.folder) / "loop").symlink_to(jail.folder)
    used, entries = folder_use(jail, 100)
    assert entries == 4
    assert 1 << 20 <= used < 2 << 20
    nest(jail.folder, 40, "n" * 255, 0o700)
    with pytest.raises(OSError, match="too long"):
        folder_use(jail, 100)


def test_files_are_read_and_links_are_not_followed(jail: Jail) -> None:
    folder = Path(jail.folder)
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_bytes(b"abc")
    (folder / "way").symlink_to("sub")
    (folder / "link").symlink_to("sub/file")
    os.mkfifo(folder / "pipe")
    assert read_files(jail.folder, ("sub//file", "absent", "sub/absent"), 3) == {"sub//file": b"abc"}
    for path, reason in (
        ("way/file", "cannot be read"),
        ("link", "cannot be read"),
        ("pipe", "not a regular file"),
        ("sub", "cannot be read"),
        ("sub/file/x", "cannot be read"),
    ):
        with pytest.raises(NotFetched, match=reason):
            read_files(jail.folder, (path,), 100)
    with pytest.raises(NotFetched, match="larger than the sandbox returns"):
        read_files(jail.folder, ("sub/file",), 2)
