"""Real learner ranks for tests: one process a rank, driven through their public methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import pytest

from rlhf.trainer.rank.learner_worker import LearnerWorker
from tests.warm.calls import WarmCalls

_worker = LearnerWorker()


def ask(method: str, *arguments: Any, **named: Any) -> Any:
    """Runs in the rank's process."""
    return attrgetter(method)(_worker)(*arguments, **named)


def inspect(look: Callable[..., Any], *arguments: Any) -> Any:
    """Runs in the rank's process: `look(rank, …)` at what only tests want to see."""
    return look(_worker.policy, *arguments)


class ProcessWorker:
    """A `Worker` in a process of its own, without a cluster."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = WarmCalls()

    async def call(self, method: str, *arguments: Any, timeout_seconds: float, **named: Any) -> Any:
        future = self.process.submit(ask, method, *arguments, **named)
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_seconds)

    def inspect(self, look: Callable[..., Any], *arguments: Any) -> Any:
        return self.process.submit(inspect, look, *arguments)


@contextmanager
def rank_processes(count: int) -> Iterator[list[ProcessWorker]]:
    """`count` fresh processes, ended with the block."""
    workers = [ProcessWorker(f"learner-{index}") for index in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.end()


def ranks_of(request: pytest.FixtureRequest, count: int) -> list[ProcessWorker]:
    """The processes of one or two ranks that the file's tests share (`conftest.py`)."""
    workers: list[ProcessWorker] = request.getfixturevalue("single" if count == 1 else "pair")
    return workers
