"""What is freed while a model is loaded goes back to the system, and not to the allocator."""

from __future__ import annotations

import psutil

from rlhf.trainer.rank.process_memory import GIVEN_BACK, Freed

BLOCK, BLOCKS = 100_000, 1000
"""In bytes: small enough for the heap."""


def test_gaps_of_the_heap_go_back_to_the_system_when_enough_was_freed() -> None:
    blocks = [b"x" * BLOCK for _ in range(BLOCKS)]
    del blocks[:-1]  # the last one keeps the heap from ending before the gap
    process, freed = psutil.Process(), Freed()
    freed.add(GIVEN_BACK)
    before = process.memory_info().rss
    freed.add(1)
    assert before - process.memory_info().rss > BLOCK * BLOCKS / 2
