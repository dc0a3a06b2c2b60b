"""The folder of a run: makes and removes it, measures it, writes input files and reads output files."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping

from rlhf.sandbox.program import SandboxLimits
from rlhf.sandbox.run_request import Jail

CLONE_NEWNS, MNT_DETACH = 0x20000, 2
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 1 << 14, 1 << 18
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class NotFetched(Exception):
    """The program's files cannot be returned; the message says why."""


def make_folder(jail: Jail, limits: SandboxLimits) -> None:
    """Make the folder, on a tmpfs of limited size if the jail has one, for the program's user. Raises `OSError`."""
    if not jail.alone:
        os.mkdir(jail.folder, 0o700)
        if jail.sized:
            _mount(jail.folder, limits)
    if jail.uid is not None:
        os.chown(jail.folder, jail.uid, jail.uid)


def remove_folder(jail: Jail) -> None:
    """Remove the folder with its content, for any depth, file names and permissions that the program created."""
    if jail.alone:
        return
    if jail.sized:
        ctypes.CDLL(None).umount2(jail.folder.encode(), MNT_DETACH)
        os.rmdir(jail.folder)
    elif os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", jail.folder):  # it has no limit on the depth, and follows no links
        os.spawnlp(os.P_WAIT, "chmod", "chmod", "-R", "u+rwx", jail.folder)
        os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", jail.folder)


def folder_use(jail: Jail, most_entries: int) -> tuple[int, int]:
    """Return the bytes and entries of the folder. Deleted files that are still open count only in a file system for the
    run alone; elsewhere, counting stops after `most_entries`. Raises `OSError` for a folder that cannot be read."""
    if jail.sized:
        about = os.statvfs(jail.folder)
        used = (about.f_blocks - about.f_bfree) * about.f_frsize
        return used, about.f_files - about.f_ffree - 1  # the folder itself is an entry
    total, entries, folders = 0, 0, [jail.folder]
    while folders and entries <= most_entries:
        try:
            with os.scandir(folders.pop()) as listing:
                for entry in listing:
                    about_entry = entry.stat(follow_symlinks=False)
                    total, entries = total + about_entry.st_blocks * 512, entries + 1
                    folders += [entry.path] if stat.S_ISDIR(about_entry.st_mode) else []
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed in the meantime
    return total, entries


def write_files(files: Mapping[str, bytes]) -> None:
    """Write `files` to the current folder. Raises `OSError`, `RecursionError`."""
    for path, content in files.items():
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def read_files(folder: str, paths: tuple[str, ...], most_bytes: int) -> dict[str, bytes]:
    """Read the files at `paths` that exist, at most `most_bytes`, without following links. Raises `NotFetched`."""
    found: dict[str, bytes] = {}
    for path in paths:
        try:
            found[path] = _read_beneath(folder, path, most_bytes)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NotFetched(f"{path:.200} cannot be read: {error.strerror}") from None
        most_bytes -= len(found[path])
        if most_bytes < 0:
            raise NotFetched(f"the fetched files, {path:.200} among them, are larger than the sandbox returns")
    return found


def _read_beneath(folder: str, path: str, most_bytes: int) -> bytes:
    """Read a regular file, at most `most_bytes` + 1 bytes, without following a link in any part of the path."""
    *folders, name = [part for part in path.split("/") if part]
    where = os.open(folder, OPEN_FOLDER)
    try:
        for part in folders:
            deeper = os.open(part, OPEN_FOLDER, dir_fd=where)
            os.close(where)
            where = deeper
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=where)
    finally:
        os.close(where)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotFetched(f"{path:.200} is not a regular file")
        return file.read(most_bytes + 1)


def _mount(folder: str, limits: SandboxLimits) -> None:
    """Mount an empty tmpfs on `folder`, in a private mount namespace. Needs CAP_SYS_ADMIN."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={limits.disk_bytes},nr_inodes={limits.files + 1},mode=0700"
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _succeed(libc.unshare(CLONE_NEWNS), "a mount namespace")
    _succeed(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")
    _succeed(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options.encode()), "a file system in memory")


def _succeed(result: int, step: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{step} was refused")
