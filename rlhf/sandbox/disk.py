"""A file system in memory for one run, mounted where only its supervisor and what it starts see it: gone with them."""

from __future__ import annotations

import ctypes
import os

from rlhf.sandbox.limits import SandboxLimits

CLONE_NEWNS = 0x20000
MNT_DETACH = 2
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 1 << 14, 1 << 18


def mount_own(folder: str, limits: SandboxLimits) -> None:
    """Put an empty file system of the size that `limits` give over `folder`. Needs CAP_SYS_ADMIN. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={limits.disk_bytes},nr_inodes={limits.files + 1},mode=0700"
    _worked(libc.unshare(CLONE_NEWNS), "a mount namespace")
    _worked(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _worked(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options.encode()), "a file system in memory")


def unmount(folder: str) -> None:
    """Take it away again, also from under processes that are in it."""
    ctypes.CDLL(None).umount2(folder.encode(), MNT_DETACH)


def filled(folder: str) -> tuple[int, int]:
    """Bytes and entries of the file system at `folder`, whether or not they still have a name."""
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize, about.f_files - about.f_ffree - 1  # itself


def _worked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what} was refused")
