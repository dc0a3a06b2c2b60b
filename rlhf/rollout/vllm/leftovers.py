"""Find the shared memory that vLLM's tensor-parallel CPU processes leave behind when they end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

SEGMENTS = "/dev/shm/vllm_dist_"


def shared_segments(pids: Iterable[int]) -> set[Path]:
    """The shared-memory files that these processes have mapped and that are not unlinked yet."""
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {
        Path(SEGMENTS + line.partition(SEGMENTS)[2]) for line in lines if SEGMENTS in line and "(deleted)" not in line
    }
