"""One start of a run under its guard, and the rule that decides whether it starts again after a failure."""

from __future__ import annotations

import asyncio
import faulthandler
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlhf.cluster.stacks import ASKED, write_stacks_when_asked
from rlhf.cluster.supervisor import Ended, Pulse
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.restarts import Restart
from rlhf.trainer.checkpoint import checkpoints, is_whole

FRUITLESS = 3
"""Consecutive attempts without progress after which a run is not restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run. `restart` says why it is not the first, `pulse` leads to its guard; without one, nobody
    watches it."""

    restart: Restart | None = None
    pulse: Pulse | None = None

    @asynccontextmanager
    async def watched(self, log: Path) -> AsyncIterator[None]:
        """Beat while the block runs and the event loop turns. When the guard asks for stacks, they go to `log`."""
        if self.pulse is None:
            yield
            return
        with log.open("a") as stacks:
            write_stacks_when_asked(stacks)
            beating = asyncio.create_task(self.pulse.beat())
            try:
                yield
            finally:
                beating.cancel()
                faulthandler.unregister(ASKED)

    def record(self, folder: RunFolder, from_update: int) -> str | None:
        """Record a restart in the run folder, and return it as a sentence; None for a first attempt."""
        if self.restart is None:
            return None
        restart = replace(self.restart, from_update=from_update)
        with closing(JsonlWriter(folder.restarts, may_write=folder.check)) as writer:
            writer.write([asdict(restart)])
        return restart.sentence


class RestartRule:
    """Decides after each attempt of a run whether it is started again, at most `most` times."""

    def __init__(self, folder: RunFolder, most: int) -> None:
        self._folder, self._most = folder, most
        self._made = self._fruitless = 0
        self._began = False
        self._furthest = (0, 0)

    def after(self, ended: Ended, tell: Callable[[str], None]) -> Restart | None:
        """Return the restart that follows; None, and why, if there is none. It must not follow an attempt that had not
        begun: the folder may still be an earlier run's."""
        self._began |= ended.began
        if ended.cause is None or not self._began or self._most == 0:
            return None
        updates, saved = reached = updates_of(self._folder.metrics), saved_update(self._folder.checkpoints)
        further = updates > self._furthest[0] or saved > self._furthest[1]
        self._furthest = max(updates, self._furthest[0]), max(saved, self._furthest[1])
        self._fruitless = 0 if further else self._fruitless + 1
        if reached == (0, 0) and self._made == 0:
            tell("not restarted: it failed before its first update")
        elif self._made == self._most:
            tell(f"not restarted: it restarted {self._made} times already (run.max_restarts)")
        elif self._fruitless == FRUITLESS:
            tell(f"not restarted: {FRUITLESS} consecutive restarts made no progress")
        else:
            self._made += 1
            return Restart(number=self._made, cause=ended.cause, time=time.time(), reached=updates)
        return None


def updates_of(metrics: Path) -> int:
    """Return the number of updates that were logged: each is a line."""
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def saved_update(folder: Path) -> int:
    """Return the update of the newest whole checkpoint; 0 without one."""
    whole = [path for path in checkpoints(folder) if is_whole(path)]
    return int(whole[-1].name.rpartition("-")[2]) if whole else 0
