"""Memory of processes that compute on a CPU."""

from __future__ import annotations

TUNABLES = {
    "hugetlb": 1,
    "arena_max": 1,
    "mmap_threshold": 2**30,
    "trim_threshold": 4 * 2**30,
    "top_pad": 64 * 2**20,
}
"""Of glibc's `malloc`. It asks for pages of 2 MiB; and it keeps blocks of up to 1 GiB that are freed, in its one arena
that can hold blocks of that size: a forward pass reuses the memory of the previous one's activations, a gathered layer
that of the layer before, and a reload of an engine's weights that of the last reload. What is kept at most, 4 GiB, is
given back where a process sleeps (`rlhf.models.parked.give_back`)."""
CPU_MEMORY = {
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items()),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""Environment variables for glibc and for torch, which asks for the large pages too, where the system gives them to who
asks (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled). Read when a process starts. Of a reload of 1 GB half or
more was the kernel's time for fresh pages (`benchmarks/publish/`)."""
