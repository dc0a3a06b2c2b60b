"""The size of Ray's object store: shared memory in which batches lie between the controller and the ranks."""

from __future__ import annotations

import os
from pathlib import Path

LEAST_BYTES = 256 << 20
SHARED_MEMORY = Path("/dev/shm")  # where Ray has its store
SHARE = 0.5
"""Of the free shared memory, at most: vLLM's and NCCL's segments lie there too."""
NODE_SHARE = 1 / 16
"""Of a node's shared memory, for a store that is made before the run is known."""


def store_bytes(needed: float, free: int) -> int:
    """The size for objects of `needed` bytes with `free` bytes of shared memory."""
    return max(LEAST_BYTES, int(min(needed, SHARE * free)))


def node_store_bytes() -> int:
    """The size on a node whose run is not known yet."""
    total, free = shared_memory_bytes()
    return store_bytes(NODE_SHARE * total, free)


def shared_memory_bytes() -> tuple[int, int]:
    """Bytes of shared memory on this machine: all, and free; 0 where there is none."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except FileNotFoundError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
