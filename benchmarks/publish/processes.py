"""Workers of the benchmark: one process each, with one thread for arithmetic."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from operator import attrgetter
from typing import Any

_held: dict[str, Any] = {}
"""In a worker's process: the object that it holds."""


class ProcessWorker:
    """A `Worker` in a process of its own, without a cluster. Calls run one after another."""

    def __init__(self, name: str, factory: str, environment: Mapping[str, str], **given: Any) -> None:
        self.name = name
        self._process = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_hold, initargs=(factory, {"name": name, **given})
        )
        before = dict(os.environ)
        os.environ.update({"OMP_NUM_THREADS": "1", **environment})
        self._process.submit(os.getpid)  # starts the process now: its allocator reads the environment then
        os.environ.clear()
        os.environ.update(before)

    async def call(self, method: str, *arguments: Any, timeout_seconds: float, **named: Any) -> Any:
        future = self._process.submit(_ask, method, *arguments, **named)
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_seconds)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call `function(held object, …)` in the process."""
        return self._process.submit(_run, function, *arguments)

    def end(self) -> None:
        self._process.shutdown(wait=False, cancel_futures=True)
        for process in list((self._process._processes or {}).values()):
            process.kill()


def _hold(factory: str, arguments: Mapping[str, Any]) -> None:
    module, _, name = factory.partition(":")
    import torch

    torch.set_num_threads(1)
    _held["object"] = getattr(import_module(module), name)(**arguments)


def _ask(method: str, *arguments: Any, **named: Any) -> Any:
    return attrgetter(method)(_held["object"])(*arguments, **named)


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_held["object"], *arguments)
