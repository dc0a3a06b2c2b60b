from __future__ import annotations

import pytest

from rlhf.cluster.ray_connection import LEAST_BYTES, store_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("needed", "free", "size"),
    [(1000, 64 * GIB, LEAST_BYTES), (3 * GIB, 64 * GIB, 3 * GIB), (100 * GIB, 64 * GIB, 32 * GIB),
     (100 * GIB, 64 * 2**20, LEAST_BYTES)],
    ids=["a small run", "a large run", "half of the memory is left", "a small container"],
)  # fmt: skip
def test_the_object_store_has_what_a_run_needs_where_shared_memory_has_it(needed: int, free: int, size: int) -> None:
    assert store_bytes(needed, free) == size
