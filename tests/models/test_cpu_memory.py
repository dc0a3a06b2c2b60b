"""Memory that a process on a CPU frees is kept for its next block of that size, until it is given back."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping

import pytest

from rlhf.models.cpu_memory import CPU_MEMORY

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
AFTER_LOADING = f"""
from rlhf.trainer.rank.process_memory import freed_at_once
with freed_at_once():
    pass
{TOUCHES}"""


def told(program: str, environment: Mapping[str, str]) -> tuple[int, int, int]:
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return tuple(json.loads(ran.stdout))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of another library")
@pytest.mark.parametrize("program", [TOUCHES, AFTER_LOADING], ids=["at once", "after loading a model"])
def test_freed_memory_is_kept_and_can_be_given_back(program: str) -> None:
    first, second, given_back = told(program, os.environ | CPU_MEMORY)
    assert first >= 100, "at least one fault for each page of 2 MiB"
    assert second < first / 10
    assert given_back > 150 << 20
