"""Memory that a process on a CPU frees is kept for its next block of that size, until it is given back."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from rlhf.cluster.cpu_memory import CPU_MEMORY

TOUCHES = """
import ctypes, json, resource
def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x") * (200 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
first, second, kept = touched(), touched(), resident()
ctypes.CDLL(None).malloc_trim(0)
print(json.dumps([first, second, kept - resident()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of another library")
def test_freed_memory_is_kept_and_can_be_given_back() -> None:
    ran = subprocess.run([sys.executable, "-c", TOUCHES], env=os.environ | CPU_MEMORY, capture_output=True, check=True)
    first, second, given_back = json.loads(ran.stdout)
    assert first >= 100, "at least one fault for each page of 2 MiB"
    assert second < first / 10
    assert given_back > 150 << 20
