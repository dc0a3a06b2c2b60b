"""The environment of a learner rank's process, read before torch is imported."""

from __future__ import annotations


def rank_environment(device: str) -> dict[str, str]:
    """On a CPU the activations of one pass are the next one's: memory that goes back to the system in between comes
    back page by page, a tenth of the time of a pass. So the allocator keeps it (32 MiB is the largest block for which
    glibc may be told to)."""
    if device != "cpu":
        return {}
    return {
        "DS_ACCELERATOR": "cpu",
        "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
        "MALLOC_TRIM_THRESHOLD_": str(4 * 2**30),
        "MALLOC_TOP_PAD_": str(64 * 2**20),
    }
