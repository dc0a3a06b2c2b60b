"""The sandbox in this process: a bounded number of programs runs at the same time, the others are queued."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rlhf.errors import SandboxBroken, SandboxBusy
from rlhf.sandbox.levels import ChosenIsolation, choose
from rlhf.sandbox.program import Program, ProgramResult, SandboxLimits
from rlhf.sandbox.run import run_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    runs: int = os.cpu_count() or 1
    """Programs that run at the same time."""
    waiting: int = 1024
    """Programs that may wait; a further one is refused."""
    wait_seconds: float = 300.0
    """Longest waiting time of a program."""


class Sandbox:
    """A `ProgramRunner` in this process. Each run has its own thread; `start` probes the machine once."""

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        queue: Queue | None = None,
        *,
        python: str | None = None,
        allow_rlimits: bool = False,
        chosen: ChosenIsolation | None = None,
    ) -> None:
        self.limits, self.queue = limits or SandboxLimits(), queue or Queue()
        self._python, self._allow_rlimits = python, allow_rlimits
        self._chosen = chosen
        # For the kernel, a supervisor's parent is the thread that started it; these threads live as long as the pool.
        self._threads = ThreadPoolExecutor(self.queue.runs, thread_name_prefix="sandbox")
        self._places = asyncio.Semaphore(self.queue.runs)
        self._starting = asyncio.Lock()
        self.running = self.waiting = 0

    @property
    def chosen(self) -> ChosenIsolation:
        if self._chosen is None:
            raise SandboxBroken("the sandbox was used before its start")
        return self._chosen

    async def start(self) -> None:
        """Find the isolation. Raises `SandboxUnavailable`."""
        async with self._starting:
            if self._chosen is None:
                self._chosen = await asyncio.to_thread(choose, python=self._python, allow_rlimits=self._allow_rlimits)

    async def run(self, program: Program) -> ProgramResult:
        """Run `program` and return its result. Raises `SandboxBusy`, and `SandboxBroken`."""
        isolation = self.chosen.isolation
        await self._take_place()
        self.running += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, run_program, program, self.limits, isolation)
        future.add_done_callback(self._free)
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Wait for the running programs; each ends within its own limits."""
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def _take_place(self) -> None:
        """Take a slot. `_free` releases it at the end of the run, even if the caller was cancelled."""
        if self._places.locked() and self.waiting >= self.queue.waiting:
            raise SandboxBusy(f"{self.waiting} programs are already waiting for the sandbox")
        self.waiting += 1
        try:
            async with asyncio.timeout(self.queue.wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise SandboxBusy(f"no place in the sandbox was free within {self.queue.wait_seconds:g} s") from None
        finally:
            self.waiting -= 1

    def _free(self, future: asyncio.Future[ProgramResult]) -> None:
        self.running -= 1
        self._places.release()
        if not future.cancelled():
            future.exception()  # retrieved, because the caller may have been cancelled
