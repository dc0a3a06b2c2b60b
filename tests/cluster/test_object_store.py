"""Ray's object store has what a run needs, where shared memory has it."""

from __future__ import annotations

from rlhf.cluster.object_store import LEAST_BYTES, store_bytes

GIB = 2**30


def test_a_small_run_has_the_least() -> None:
    assert store_bytes(1000, 64 * GIB) == LEAST_BYTES


def test_a_large_run_has_what_it_needs() -> None:
    assert store_bytes(3 * GIB, 64 * GIB) == 3 * GIB


def test_half_of_the_shared_memory_is_left_to_others() -> None:
    assert store_bytes(100 * GIB, 64 * GIB) == 32 * GIB


def test_a_container_with_little_shared_memory_still_has_the_least() -> None:
    assert store_bytes(100 * GIB, 64 * 2**20) == LEAST_BYTES
