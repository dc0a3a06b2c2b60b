"""A sandbox that many ask at once, each in its turn."""

from __future__ import annotations

import asyncio
import time

from rlhf.sandbox.program import Program, ProgramResult, ProgramRunner, SandboxBusy

AGAIN_SECONDS = 1.0


class InTurn:
    """A `ProgramRunner` that asks `runner` for at most `at_once` programs at a time, and again where that is busy.

    A program that was refused for want of a place has not run, so asking again repeats nothing. Programs that use all
    of their time keep the others waiting, and cost them no answer: only where nobody was served for `patience_seconds`
    is the sandbox given up, and `SandboxBusy` raised.
    """

    def __init__(self, runner: ProgramRunner, at_once: int, patience_seconds: float) -> None:
        self._runner, self._patience_seconds = runner, patience_seconds
        self._places = asyncio.Semaphore(at_once)
        self._served = 0.0

    async def start(self) -> None:
        await self._runner.start()

    async def run(self, program: Program) -> ProgramResult:
        """What became of `program`. Raises `SandboxBroken`, `SandboxBusy`."""
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
