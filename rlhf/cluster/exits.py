"""How a process on this machine ended, read from the kernel even if its parent has already reaped it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import time

PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO_SIZE = 64
PIDFD_GET_INFO = (3 << 30) | (PIDFD_INFO_SIZE << 16) | (0xFF << 8) | 11
EXIT_CODE_OFFSET = 60
"""`struct pidfd_info` of linux/pidfd.h: mask, cgroup id, eleven ids, exit code."""
POLL_SECONDS = 0.02


def watch_exit(pid: int) -> int | None:
    """A pidfd for the process `pid`, or None when the process no longer exists."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


async def exit_cause(pidfd: int, timeout_seconds: float) -> str | None:
    """`killed by SIGKILL`, `exited with code 3`; None if it has not ended in time, or the kernel does not report it.

    Kernels from 6.15 on report the exit once the parent has reaped the process, which may be later than its end is
    seen.
    """
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            told = _ask(pidfd)
        except OSError:
            return None
        if told is not None:
            return describe_status(told)
        await asyncio.sleep(POLL_SECONDS)
    return None


def _ask(pidfd: int) -> int | None:
    """The wait status; None before the process is reaped."""
    asked = bytearray(struct.pack("=Q", PIDFD_INFO_EXIT).ljust(PIDFD_INFO_SIZE, b"\0"))
    fcntl.ioctl(pidfd, PIDFD_GET_INFO, asked)
    told: int = struct.unpack_from("=i", asked, EXIT_CODE_OFFSET)[0]
    return told if struct.unpack_from("=Q", asked)[0] & PIDFD_INFO_EXIT else None


def describe_status(status: int) -> str:
    """Describe a wait status in words."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
