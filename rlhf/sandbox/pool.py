"""The sandbox of this process: a bounded number of runs at once, the others wait their turn."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rlhf.sandbox.ladder import Ladder, choose
from rlhf.sandbox.limits import Limits
from rlhf.sandbox.program import Program, Run, SandboxBroken, SandboxBusy
from rlhf.sandbox.run import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How much is done at once, and what waits."""

    runs: int = os.cpu_count() or 1
    """Programs that run at once."""
    waiting: int = 1024
    """Programs that wait for a place; one more is refused."""
    wait_seconds: float = 300.0
    """The longest that one waits."""


class Sandbox:
    """A `Runner` in this process. Each run has a thread of its own; `start` probes the machine, once, unless a `ladder`
    is given."""

    def __init__(
        self,
        limits: Limits | None = None,
        queue: Queue | None = None,
        *,
        python: str | None = None,
        allow_rlimits: bool = False,
        ladder: Ladder | None = None,
    ) -> None:
        self.limits, self.queue = limits or Limits(), queue or Queue()
        self._python, self._allow_rlimits = python, allow_rlimits
        self._ladder = ladder
        # A warden's parent, as the kernel sees it, is the thread that started it; these live as long as the pool.
        self._threads = ThreadPoolExecutor(self.queue.runs, thread_name_prefix="sandbox")
        self._places = asyncio.Semaphore(self.queue.runs)
        self._starting = asyncio.Lock()
        self.running = self.waiting = 0

    @property
    def ladder(self) -> Ladder:
        """The isolation that `start` chose."""
        if self._ladder is None:
            raise SandboxBroken("the sandbox was asked before it was started")
        return self._ladder

    async def start(self) -> None:
        """Find the isolation. Raises `SandboxUnavailable`."""
        async with self._starting:
            if self._ladder is None:
                self._ladder = await asyncio.to_thread(choose, python=self._python, allow_rlimits=self._allow_rlimits)

    async def run(self, program: Program) -> Run:
        """What becomes of `program`. Raises `SandboxBusy` when no place comes free, `SandboxBroken`."""
        isolation = self.ladder.isolation
        await self._take_place()
        self.running += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, run, program, self.limits, isolation)
        future.add_done_callback(self._free)
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Wait for the runs that are out; each ends within its own limits."""
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def _take_place(self) -> None:
        """Hold a place, which `_free` gives back when the run is over, whether or not someone still waits for it."""
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()  # at once

    async def _wait(self) -> None:
        if self.waiting >= self.queue.waiting:
            raise SandboxBusy(f"{self.waiting} programs wait for the sandbox already")
        self.waiting += 1
        try:
            async with asyncio.timeout(self.queue.wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise SandboxBusy(f"no place in the sandbox came free within {self.queue.wait_seconds:g} s") from None
        finally:
            self.waiting -= 1

    def _free(self, future: asyncio.Future[Run]) -> None:
        self.running -= 1
        self._places.release()
        if not future.cancelled():
            future.exception()  # who asked may have left; then nobody else looks at it
