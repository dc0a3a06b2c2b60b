"""Change the number of engines by what was measured: more where the learner waits, fewer where engines idle."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf.controller.engine_keeper import EngineKeeper
from rlhf.controller.run import Callback, Run
from rlhf.data.tasks import Tell
from rlhf.engines.config import EngineBoundsConfig
from rlhf.errors import RlhfError

WAITS_OFTEN, WAITS_SELDOM = 0.5, 0.1
"""Shares of the time that the learner waited for groups: above the first an engine is added, below the second one may
be removed."""
UPDATES = 4
"""Updates that decide. After a change they are counted anew."""
REST_SECONDS = 600.0
"""Time until the next change after one that failed."""


@dataclass(frozen=True, slots=True)
class UpdateLoad:
    """The load of an update: its `seconds`, those that the learner `waited` for groups, and those that engines were
    `busy`, summed over engines."""

    seconds: float
    waited: float
    busy: float


def engines_to_add(recent: Sequence[UpdateLoad], engines: int, bounds: EngineBoundsConfig) -> int:
    """Return 1 to add an engine, -1 to remove one, and 0 to leave them. One is removed only if fewer would do: in the
    mean at least one engine had no request."""
    if len(recent) < UPDATES:
        return 0
    seconds, waited = sum(one.seconds for one in recent), sum(one.waited for one in recent)
    if engines < bounds.min or (engines < bounds.max and waited > WAITS_OFTEN * seconds):
        return 1
    idle = sum(one.busy for one in recent) <= (engines - 1) * seconds
    return -1 if engines > bounds.min and waited < WAITS_SELDOM * seconds and idle else 0


class EngineScaling(Callback):
    """Adds and removes engines between `bounds`, one at a time, while updates go on. `busy_seconds` returns how long
    engines have been busy, summed over engines. End the `changes` with the run."""

    def __init__(
        self, bounds: EngineBoundsConfig, keeper: EngineKeeper, busy_seconds: Callable[[], float], tell: Tell
    ) -> None:
        self._bounds, self._keeper, self._busy_seconds, self._tell = bounds, keeper, busy_seconds, tell
        self._recent: deque[UpdateLoad] = deque(maxlen=UPDATES)
        self._busy, self._rests_until, self._refused = 0.0, 0.0, ""
        self.changes: set[asyncio.Task[None]] = set()

    async def on_train_begin(self, run: Run) -> None:
        self._busy = self._busy_seconds()

    async def on_step_end(self, run: Run) -> None:
        before, self._busy = self._busy, self._busy_seconds()
        for change in [one for one in self.changes if one.done()]:
            self.changes.remove(change)
            change.result()
            return  # this update had both numbers of engines
        if run.pace is None or self.changes or run.clock.elapsed_seconds < self._rests_until:
            return
        waited = run.pace.phase_seconds.get("generate", 0.0)
        self._recent.append(UpdateLoad(run.pace.seconds, waited, self._busy - before))
        serving = self._keeper.serving
        if len(serving) < self._keeper.places or run.last or run.left:  # the place of a lost engine gets another
            return
        if change_by := engines_to_add(self._recent, len(serving), self._bounds):
            self.changes.add(asyncio.create_task(self._change(run, removed=serving[-1] if change_by < 0 else None)))

    async def _change(self, run: Run, *, removed: str | None) -> None:
        share = sum(one.waited for one in self._recent) / sum(one.seconds for one in self._recent)
        try:
            await (self._keeper.remove(removed) if removed else self._keeper.add(1))
        except RlhfError as error:
            self._rests_until = run.clock.elapsed_seconds + REST_SECONDS
            if str(error) != self._refused:
                self._tell(f"no engine was {'removed' if removed else 'added'}, and none is for a while: {error}")
            self._refused = str(error)
        else:
            self._tell(
                f"{len(self._keeper.serving)} engines serve now, because the learner waited {share:.0%} of its time"
            )
        self._recent.clear()
