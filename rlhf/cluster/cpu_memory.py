"""Settings for how processes that compute on a CPU get and keep memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

TUNABLES = {"hugetlb": 1, "arena_max": 1, "mmap_threshold": 2**30, "trim_threshold": 4 * 2**30, "top_pad": 64 * 2**20}
"""Of glibc's `malloc`. It asks for pages of 2 MiB: the first touch of 256 MiB takes 33 ms instead of 145. It keeps
freed blocks of up to 1 GiB, in one arena, up to 4 GiB: a forward pass reuses the memory of the last one's activations,
and a reload of an engine's weights that of the last one, else up to four times slower (`benchmarks/publish/`). Workers
that sleep give it back (`rlhf.models.offload.give_back`)."""
VARIABLE, PREFIX = "GLIBC_TUNABLES", "glibc.malloc."
CPU_MEMORY = {
    VARIABLE: ":".join(f"{PREFIX}{name}={value}" for name, value in TUNABLES.items()),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""Environment variables for glibc and for torch, read when a process starts; the same for ranks and engines, which may
share a process. Large pages need `madvise` in /sys/kernel/mm/transparent_hugepage/enabled."""
PARAMETERS = {"trim_threshold": -1, "top_pad": -2, "mmap_threshold": -3, "arena_max": -8}
"""Numbers in malloc.h of the tunables that a running process can still set: all except large pages."""
LARGEST_INT = 2**31 - 1


def malloc_settings(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the settings of `malloc` in these variables, as far as a running process can set them."""
    settings = (setting.partition("=") for setting in environment.get(VARIABLE, "").split(":"))
    named = {name.removeprefix(PREFIX): value for name, _, value in settings if name.startswith(PREFIX)}
    return {name: min(int(named[name]), LARGEST_INT) for name in PARAMETERS if name in named}


def configure_malloc(environment: Mapping[str, str]) -> None:
    """Set here what glibc would have read from these variables if the process had started with them."""
    libc = ctypes.CDLL(None)
    for name, value in malloc_settings(environment).items():
        libc.mallopt(PARAMETERS[name], value)
