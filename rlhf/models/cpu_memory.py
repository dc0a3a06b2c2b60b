"""Settings for how processes that compute on a CPU get and keep memory."""

from __future__ import annotations

TUNABLES = {"hugetlb": 1, "arena_max": 1, "mmap_threshold": 2**30, "trim_threshold": 4 * 2**30, "top_pad": 64 * 2**20}
"""Of glibc's `malloc`. It asks for pages of 2 MiB: the first touch of 256 MiB takes 33 ms instead of 145. It keeps
freed blocks of up to 1 GiB, in one arena, up to 4 GiB: a forward pass reuses the memory of the last one's activations,
and a reload of an engine's weights that of the last one, else up to four times slower (`benchmarks/publish/`). Workers
that sleep give it back (`rlhf.models.offload.give_back`)."""
VARIABLE = "GLIBC_TUNABLES"
CPU_MEMORY = {
    VARIABLE: ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items()),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""Environment variables for glibc and for torch, read when a process starts; the same for ranks and engines, which may
share a process. Large pages need `madvise` in /sys/kernel/mm/transparent_hugepage/enabled."""
