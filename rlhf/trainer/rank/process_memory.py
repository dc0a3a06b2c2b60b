"""Memory that is freed while a model is loaded or exported goes back to the system, and not to the allocator."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rlhf.cluster.cpu_memory import PARAMETERS, malloc_settings

THRESHOLD = "mmap_threshold"
"""Larger blocks are mapped each by itself, and unmapped when freed; see mallopt(3)."""
WHILE_LOADING, USUAL = 2**20, 128 * 2**10
"""In bytes; `USUAL` is glibc's default, where `process_variables` sets no other."""
GIVEN_BACK = 2**25


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Inside, blocks of a mebibyte are not kept for reuse (`process_variables` says why they otherwise are): a shard
    is made, moved into DeepSpeed's buffer of all shards, and freed; a weight is gathered, written, and freed. Those
    that fit into gaps of the heap go there all the same, until `Freed`."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library than glibc, with an allocator of its own
        yield
        return
    mallopt(PARAMETERS[THRESHOLD], WHILE_LOADING)
    try:
        yield
    finally:
        mallopt(PARAMETERS[THRESHOLD], malloc_settings(os.environ).get(THRESHOLD, USUAL))


class Freed:
    """Counts what is freed, and every `GIVEN_BACK` bytes has the allocator return what it has free, gaps within its
    heap included: that takes a millisecond or two."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, count: int) -> None:
        self._bytes += count
        if self._bytes > GIVEN_BACK:
            self._bytes = 0
            with suppress(AttributeError):  # another C library than glibc
                ctypes.CDLL(None).malloc_trim(0)
