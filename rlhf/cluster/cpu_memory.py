"""How processes that compute on a CPU get and keep memory. Environment variables, read when a process starts."""

from __future__ import annotations

LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
"""glibc and torch ask for pages of 2 MiB, where the system gives them to who asks (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled). To touch 256 MiB for the first time takes 33 ms instead of 145 then."""
TUNABLES = {"hugetlb": 1, "arena_max": 1, "mmap_threshold": 2**30, "trim_threshold": 4 * 2**30, "top_pad": 64 * 2**20}
"""Of glibc's `malloc`: large pages, and blocks of up to 1 GiB that are freed are kept, in the one arena that can hold
them, up to 4 GiB."""
KEPT_MEMORY = LARGE_PAGES | {
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())
}
"""For engines: a reload of weights uses the memory of the last one. Of its time up to three quarters were the kernel's,
for fresh pages (`benchmarks/publish/`). An engine that sleeps gives back what it keeps
(`rlhf.models.parked.give_back`)."""
