"""The environment of a learner rank's process, read before torch is imported."""

from __future__ import annotations

from rlhf.cluster.cpu_memory import LARGE_PAGES


def rank_environment(device: str) -> dict[str, str]:
    """Environment variables for a rank on `device`. On a CPU every forward pass reuses the memory of the previous one's
    activations. If it were returned to the system in between, it would come back page by page, which costs a tenth of
    the time of a pass. So the allocator keeps it (32 MiB is the largest block size that glibc accepts here). Larger
    blocks, of gathered weights, come in `LARGE_PAGES`."""
    if device != "cpu":
        return {}
    return LARGE_PAGES | {
        "DS_ACCELERATOR": "cpu",
        "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
        "MALLOC_TRIM_THRESHOLD_": str(4 * 2**30),
        "MALLOC_TOP_PAD_": str(64 * 2**20),
    }
