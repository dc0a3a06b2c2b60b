"""Removes the folders of runs, for any depth, file names and permissions that the program created."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Container, Iterator

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_SECONDS = 10.0
"""A younger folder may not be locked by its owner yet."""


def remove(folder: str) -> None:
    """Remove `folder` with its content; no process may run in it any more. Raises `OSError` for what cannot be removed.

    A nested folder is moved to the top before it is emptied. So there is no recursion, no path longer than two names,
    at most two file descriptors, and no link is followed.
    """
    with _opened(folder, None) as top:
        waiting, moved, ours = _emptied(top), 0, os.urandom(8).hex()
        while waiting:
            name = waiting.pop()
            with _opened(name, top) as inner:
                for deeper in _emptied(inner):
                    _let_in(deeper, inner)  # moving a folder changes its "..", which needs rights on it
                    moved += 1
                    os.rename(deeper, f".{ours}-{moved}", src_dir_fd=inner, dst_dir_fd=top)
                    waiting.append(f".{ours}-{moved}")
            os.rmdir(name, dir_fd=top)
    os.rmdir(folder)


def sweep(folder: str, prefix: str, owners: Container[int]) -> None:
    """Remove the folders in `folder` that belong to `owners`, whose names begin with `prefix`, and that no process has
    locked: those of dead services."""
    with os.scandir(folder) as listing:
        found = [entry.path for entry in listing if entry.name.startswith(prefix)]
    for path in found:
        with contextlib.suppress(OSError):
            about = os.lstat(path)
            if about.st_uid in owners and time.time() - about.st_mtime > NEW_SECONDS:
                with folder_lock(path):
                    remove(path)


@contextlib.contextmanager
def folder_lock(folder: str) -> Iterator[None]:
    """Hold the lock that marks `folder` as in use; the kernel releases it when the owner dies. Raises `OSError` if
    another process holds it."""
    descriptor = os.open(folder, OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _emptied(folder: int) -> list[str]:
    """Delete all files in `folder`, and return the names of its subfolders."""
    with os.scandir(folder) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in entries if is_folder]


@contextlib.contextmanager
def _opened(name: str, where: int | None) -> Iterator[int]:
    _let_in(name, where)
    descriptor = os.open(name, OPEN, dir_fd=where)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _let_in(name: str, where: int | None) -> None:
    """Give this process access to a folder; root has it anyway, other users own what their program made."""
    if os.geteuid():
        os.chmod(name, stat.S_IRWXU, dir_fd=where)
