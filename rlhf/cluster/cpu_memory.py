"""How processes that compute on a CPU get and keep memory."""

from __future__ import annotations

TUNABLES = {"hugetlb": 1, "arena_max": 1, "mmap_threshold": 2**30, "trim_threshold": 4 * 2**30, "top_pad": 64 * 2**20}
"""Of glibc's `malloc`. It asks for pages of 2 MiB: to touch 256 MiB for the first time takes 33 ms instead of 145. It
keeps blocks of up to 1 GiB that are freed, in the one arena that can hold them, up to 4 GiB: a forward pass uses the
memory of the last one's activations, and a reload of an engine's weights that of the last reload, of whose time up to
three quarters were the kernel's, for fresh pages (`benchmarks/publish/`). What sleeps gives back what it keeps
(`rlhf.models.parked.give_back`)."""
CPU_MEMORY = {
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items()),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""Environment variables for glibc and for torch, read when a process starts. The same for ranks and engines, which may
share one. Large pages come where the system gives them to who asks (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled)."""
