"""How a process of this machine ended, told by the kernel although its parent has reaped it."""

from __future__ import annotations

import fcntl
import os
import signal
import struct

PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO_SIZE = 64
PIDFD_GET_INFO = (3 << 30) | (PIDFD_INFO_SIZE << 16) | (0xFF << 8) | 11
EXIT_CODE_OFFSET = 60
"""`struct pidfd_info` of linux/pidfd.h: mask, cgroup id, eleven ids, exit code."""


def watch_exit(pid: int) -> int | None:
    """A descriptor that remembers the process `pid`, or None when it is gone already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def exit_cause(pidfd: int) -> str | None:
    """`killed by SIGKILL`, `exited with code 3`, or None where the kernel (before 6.15) does not tell."""
    asked = bytearray(struct.pack("=Q", PIDFD_INFO_EXIT).ljust(PIDFD_INFO_SIZE, b"\0"))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, asked)
    except OSError:
        return None
    told = struct.unpack_from("=Q", asked)[0] & PIDFD_INFO_EXIT
    return describe_status(struct.unpack_from("=i", asked, EXIT_CODE_OFFSET)[0]) if told else None


def describe_status(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
