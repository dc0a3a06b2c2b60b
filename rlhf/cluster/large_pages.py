"""Large pages for the memory of processes that compute on a CPU."""

from __future__ import annotations

LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
"""Environment variables by which glibc and torch ask for pages of 2 MiB, where the system gives them to who asks
(`madvise` in /sys/kernel/mm/transparent_hugepage/enabled). To touch 256 MiB for the first time takes 33 ms instead of
145 then. Read when a process starts."""
