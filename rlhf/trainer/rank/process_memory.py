"""The memory of a learner rank's process on a CPU: what the allocator keeps for reuse, and when it keeps nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rlhf.models.cpu_memory import CPU_MEMORY, TUNABLES, VARIABLE

M_MMAP_THRESHOLD = -3
"""Larger blocks are mapped each by itself, and unmapped when freed; see mallopt(3)."""
WHILE_LOADING, USUAL = 2**20, 128 * 2**10
"""In bytes; `USUAL` is glibc's default, where `rank_environment` sets no other."""


def rank_environment(device: str) -> dict[str, str]:
    """Environment variables for a rank on `device`, read before torch is imported. On a CPU freed memory is kept
    (`CPU_MEMORY`): activations that were returned to the system would come back page by page, which costs a tenth of
    the time of a pass."""
    return CPU_MEMORY | {"DS_ACCELERATOR": "cpu"} if device == "cpu" else {}


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Inside, blocks of a mebibyte and more go back to the system when they are freed. While a model is loaded, a shard
    is made, moved into DeepSpeed's buffer of all shards, and freed; while it is saved, each weight is gathered, written
    and freed. Without this a save of 299 M parameters takes 960 MiB instead of 101 (`benchmarks/memory_of_ranks`)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library than glibc, with another allocator
        yield
        return
    mallopt(M_MMAP_THRESHOLD, WHILE_LOADING)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, TUNABLES["mmap_threshold"] if VARIABLE in os.environ else USUAL)
