"""A tmpfs for one run, mounted in a private mount namespace: only its supervisor and that one's children see it."""

from __future__ import annotations

import ctypes
import os

from rlhf.sandbox.limits import SandboxLimits

CLONE_NEWNS = 0x20000
MNT_DETACH = 2
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 1 << 14, 1 << 18


def mount_own(folder: str, limits: SandboxLimits) -> None:
    """Mount an empty tmpfs of the size in `limits` on `folder`. Needs CAP_SYS_ADMIN. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={limits.disk_bytes},nr_inodes={limits.files + 1},mode=0700"
    _worked(libc.unshare(CLONE_NEWNS), "a mount namespace")
    _worked(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _worked(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options.encode()), "a file system in memory")


def unmount(folder: str) -> None:
    """Unmount it, even if processes still use it."""
    ctypes.CDLL(None).umount2(folder.encode(), MNT_DETACH)


def filled(folder: str) -> tuple[int, int]:
    """Bytes and entries used in the file system at `folder`, deleted files that are still open included."""
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize, about.f_files - about.f_ffree - 1  # minus the root folder


def _worked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what} was refused")
