"""Whether a run must leave before its budget is spent: somebody asked it to, or its job's time is nearly over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

EXIT_SAVED = 75
"""What a run ends with that has saved and is not finished: `EX_TEMPFAIL`, try again."""
JOB_END = "SLURM_JOB_END_TIME"
SPARE_SECONDS = 15.0
"""What the end of a run takes, beside the update and the save that still fit into its time."""


class Leaving:
    """Asked at every update boundary, where a run saves and ends."""

    def __init__(self, ends_at: float | None = None, wall: Callable[[], float] = time.time) -> None:
        """`ends_at` in seconds since 1970, by the clock `wall`; None for a run that may take as long as it will."""
        self._ends_at, self._wall = ends_at, wall
        self._asked: str | None = None
        self.stopped = False
        """Whether the run was told to end at once. What dies around it then is no failure: a job's end reaches all."""

    @classmethod
    def of_job(cls, environment: Mapping[str, str] = os.environ) -> Leaving:
        """With the end of the SLURM job that this process is a part of, if it is."""
        told = environment.get(JOB_END, "")
        return cls(float(told) if told.isdecimal() else None)

    def ask(self, why: str) -> None:
        """Have the run leave at its next boundary. The first reason is the one that is told."""
        self._asked = self._asked or why

    def reason(self, next_seconds: float) -> str | None:
        """Why the run must leave now, if another `next_seconds`, an update and a save, are too many."""
        if self._asked is None and self._ends_at is not None:
            left = self._ends_at - self._wall()
            if left < next_seconds + SPARE_SECONDS:
                return f"the job ends in {max(left, 0):.0f} s"
        return self._asked
