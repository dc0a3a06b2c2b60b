"""How processes that compute on a CPU get and keep memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

TUNABLES = {"hugetlb": 1, "arena_max": 1, "mmap_threshold": 2**30, "trim_threshold": 4 * 2**30, "top_pad": 64 * 2**20}
"""Of glibc's `malloc`. It asks for pages of 2 MiB: to touch 256 MiB for the first time takes 33 ms instead of 145. It
keeps blocks of up to 1 GiB that are freed, in the one arena that can hold them, up to 4 GiB: a forward pass uses the
memory of the last one's activations, and a reload of an engine's weights that of the last reload, of whose time up to
three quarters were the kernel's, for fresh pages (`benchmarks/publish/`). What sleeps gives back what it keeps
(`rlhf.models.offload.give_back`)."""
VARIABLE, PREFIX = "GLIBC_TUNABLES", "glibc.malloc."
CPU_MEMORY = {
    VARIABLE: ":".join(f"{PREFIX}{name}={value}" for name, value in TUNABLES.items()),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""Environment variables for glibc and for torch, read when a process starts. The same for ranks and engines, which may
share one. Large pages come where the system gives them to who asks (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled)."""
PARAMETERS = {"trim_threshold": -1, "top_pad": -2, "mmap_threshold": -3, "arena_max": -8}
"""Numbers in malloc.h of what a process can still set when it runs, which is all but the large pages."""
LARGEST_INT = 2**31 - 1


def malloc_settings(environment: Mapping[str, str]) -> dict[str, int]:
    """The settings of `malloc` in these variables, as far as a running process can set them."""
    told = (setting.partition("=") for setting in environment.get(VARIABLE, "").split(":"))
    named = {name.removeprefix(PREFIX): value for name, _, value in told if name.startswith(PREFIX)}
    return {name: min(int(named[name]), LARGEST_INT) for name in PARAMETERS if name in named}


def configure_malloc(environment: Mapping[str, str]) -> None:
    """Set here what glibc would have read from these variables if the process had started with them."""
    libc = ctypes.CDLL(None)
    for name, value in malloc_settings(environment).items():
        libc.mallopt(PARAMETERS[name], value)
