"""Resource limits of one run.

A named tuple, as in `run_request.py`: the supervisor's process starts for every run, and importing `dataclasses` alone
would take it longer than the start of Python.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1024 * 1024


class SandboxLimits(NamedTuple):
    """Limits of one run. Memory, files and processes are limited for all processes of the run together."""

    wall_seconds: float = 10.0
    """Time from the start of the program to its end. The CPU seconds of each process are limited by it too."""
    memory_bytes: int = 1024 * MIB
    """Limit of each process's address space, and of the memory that all processes use."""
    disk_bytes: int = 64 * MIB
    """Size of everything in the run's folder, and of any one file."""
    files: int = 4096
    """Number of entries in the run's folder."""
    processes: int = 64
    """Number of processes and threads."""
    open_files: int = 256
    """Number of open files of one process."""
    output_bytes: int = MIB
    """Bytes kept of standard output and of standard error, each; the rest is read and dropped."""
    fetched_bytes: int = 16 * MIB
    """Size of all files that are returned."""

    def within(self, wall_seconds: float, memory_bytes: int) -> SandboxLimits:
        """These limits, lowered to a program's request; a memory request of 0 or less means no request."""
        return self._replace(
            wall_seconds=min(self.wall_seconds, wall_seconds),
            memory_bytes=min(self.memory_bytes, memory_bytes) if memory_bytes > 0 else self.memory_bytes,
        )
