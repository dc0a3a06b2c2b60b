"""What starting vLLM does to a whole process, put right: a learner, or a person at a terminal, may share it."""

from __future__ import annotations

import gc
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def undisturbed_process() -> Iterator[None]:
    """Keeps the states of the random generators, torch's default dtype and `torch.set_num_threads`, which vLLM's CPU
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
def without_collecting() -> Iterator[None]:
    """vLLM collects garbage several times as it ends, over every object that its imports made: seconds, in a process
    that mostly ends too. Whatever a cycle holds goes with the next collection."""
    collect, gc.collect = gc.collect, lambda generation=2: 0
    try:
        yield
    finally:
        gc.collect = collect


def quieten_imports() -> None:
    """Leave out what torch and vLLM remark at every start on a CPU: no Triton, and a name that torch will drop."""
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.reduce_op` is deprecated", FutureWarning)


@contextmanager
def uncompiled_classes() -> Iterator[None]:
    """Models that vLLM runs by transformers' own code have their class changed for the compiler, whoever else makes a
    model of it in this process. On a CPU nothing is compiled, and the class stays as it is."""
    from vllm.model_executor.models.transformers.base import Base

    decorate = Base._decorate_cls_for_torch_compile
    Base._decorate_cls_for_torch_compile = lambda *arguments, **named: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Base._decorate_cls_for_torch_compile = decorate  # type: ignore[method-assign]
