"""Undo the process-wide side effects of starting vLLM: the process may be shared with a learner or a user's session."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

SEGMENTS = "/dev/shm/vllm_dist_"


@contextmanager
def undisturbed_process() -> Iterator[None]:
    """Preserve the states of the random generators, torch's default dtype and `torch.set_num_threads`, which vLLM's CPU
    worker replaces by a function that does nothing."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    dtype, set_num_threads = torch.get_default_dtype(), torch.set_num_threads
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        torch.set_default_dtype(dtype)
        torch.set_num_threads = set_num_threads


@contextmanager
def same_preloads() -> Iterator[None]:
    """Preserve LD_PRELOAD, to which vLLM adds libraries for its own processes on a CPU: every child of this process
    would load them too, and warn about a path with a space."""
    preloaded = os.environ.get("LD_PRELOAD")
    try:
        yield
    finally:
        os.environ.pop("LD_PRELOAD", None)
        os.environ.update({} if preloaded is None else {"LD_PRELOAD": preloaded})


@contextmanager
def without_collecting() -> Iterator[None]:
    """Disable garbage collection while vLLM shuts down: vLLM collects several times, over all objects of its
    imports. That takes seconds, usually in a process that is about to end. Objects in cycles are freed by the next
    collection."""
    collect, gc.collect = gc.collect, lambda generation=2: 0
    try:
        yield
    finally:
        gc.collect = collect


def quieten_imports() -> None:
    """Silence the warnings of torch and vLLM at every start on a CPU: missing Triton, and a deprecated name in
    torch."""
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.reduce_op` is deprecated", FutureWarning)


@contextmanager
def without_unused() -> Iterator[None]:
    """Let vLLM be imported without the one backend of grammars that is not used, where it is not installed. Its
    stand-in does nothing."""
    absent = not find_spec(UNUSED)
    if absent:
        sys.modules[UNUSED] = _Absent(UNUSED)
    try:
        yield
    finally:
        if absent:
            del sys.modules[UNUSED]


UNUSED = "lmformatenforcer"


class _Absent(ModuleType):
    """Replaces a package, and each of its names."""

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")


def shared_segments(pids: Iterable[int]) -> set[Path]:
    """Return the shared-memory files that these processes have mapped and that are not unlinked yet."""
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {
        Path(SEGMENTS + line.partition(SEGMENTS)[2]) for line in lines if SEGMENTS in line and "(deleted)" not in line
    }
