"""Measure one isolation level of the tree on `PYTHONPATH`, in a separate process: print runs per second and processor
seconds per run."""

from __future__ import annotations

import asyncio
import resource
import sys
import time

from rlhf.sandbox.isolation import IsolationLevel
from rlhf.sandbox.levels import choose
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import Program

CODE = "print(sum(range(1000)))"


async def rate(level: str, runs: int) -> tuple[float, float]:
    """Return runs per second, with as many at a time as there are cores, and processor seconds per run, those of the
    service included. The first runs are not counted."""
    sandbox = Sandbox(queue=Queue(), chosen=choose(levels=(IsolationLevel(level),)))
    await sandbox.start()
    await _many(sandbox, sandbox.queue.runs)
    began, used = time.perf_counter(), _used()
    await _many(sandbox, runs)
    seconds, used = time.perf_counter() - began, _used() - used
    await sandbox.close()
    return runs / seconds, used / runs


def _used() -> float:
    """Return processor seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def _many(sandbox: Sandbox, count: int) -> None:
    ended = await asyncio.gather(*(sandbox.run(Program(code=CODE)) for _ in range(count)))
    assert all(run.stdout == "499500\n" for run in ended), ended


if __name__ == "__main__":
    print(*asyncio.run(rate(sys.argv[1], int(sys.argv[2]))))
