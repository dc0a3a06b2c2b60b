"""Queues many concurrent requests to one sandbox."""

from __future__ import annotations

import asyncio
import time

from rlhf.sandbox.program import Program, ProgramResult, ProgramRunner, SandboxBusy

AGAIN_SECONDS = 1.0


class InTurn:
    """A `ProgramRunner` that sends at most `at_once` programs at a time to `runner`, and retries when it is busy.

    A program that was refused because the sandbox was busy has not run, so a retry is safe. Programs that use all of
    their time delay others but do not make them fail. `SandboxBusy` is raised only if no program finished for
    `patience_seconds`.
    """

    def __init__(self, runner: ProgramRunner, at_once: int, patience_seconds: float) -> None:
        self._runner, self._patience_seconds = runner, patience_seconds
        self._places = asyncio.Semaphore(at_once)
        self._served = 0.0

    async def start(self) -> None:
        await self._runner.start()

    async def run(self, program: Program) -> ProgramResult:
        """Run `program` and return its result. Raises `SandboxBroken`, `SandboxBusy`."""
        async with self._places:
            asked = time.monotonic()
            while True:
                try:
                    run = await self._runner.run(program)
                except SandboxBusy:
                    if time.monotonic() - max(asked, self._served) > self._patience_seconds:
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    self._served = time.monotonic()
                    return run

    async def close(self) -> None:
        await self._runner.close()
