"""What one run may use.

A named tuple, as in `orders.py`: the supervisor's process starts for every run, and `dataclasses` alone would take it
longer to import than Python takes to start.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1024 * 1024


class SandboxLimits(NamedTuple):
    """Bounds of one run. Memory, files and processes are of everything that the run started, together."""

    wall_seconds: float = 10.0
    """From the start of the program to its end; processor seconds of each process are bounded by it too."""
    memory_bytes: int = 1024 * MIB
    """Of each process's address space, and of the memory that all of them really use."""
    disk_bytes: int = 64 * MIB
    """Of everything in the run's folder, and of any one file."""
    files: int = 4096
    """Entries of the run's folder."""
    processes: int = 64
    """Processes and threads."""
    open_files: int = 256
    """Of one process."""
    output_bytes: int = MIB
    """Kept of standard output and of standard error, each; the rest is read and dropped."""
    fetched_bytes: int = 16 * MIB
    """Of all files handed back."""

    def within(self, wall_seconds: float, memory_bytes: int) -> SandboxLimits:
        """These limits, tightened by what one program asks for; a memory of 0 or less asks for all there is."""
        return self._replace(
            wall_seconds=min(self.wall_seconds, wall_seconds),
            memory_bytes=min(self.memory_bytes, memory_bytes) if memory_bytes > 0 else self.memory_bytes,
        )
