"""Whether a run must end early: it was asked to (Ctrl-C, SIGUSR1), or its job's time is nearly over."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from rlhf.cluster.supervisor import ECHO_SECONDS

EXIT_SAVED = 75
"""Exit code of a run that has saved and is not finished: `EX_TEMPFAIL`, try again."""
JOB_END = "SLURM_JOB_END_TIME"
SPARE_SECONDS = 15.0
"""Time that the end of a run takes, in addition to one more update and save."""
SAVE_SECONDS = 60.0
"""Time for a save alone."""


@contextmanager
def at_first_ctrl_c(act: Callable[[], bool]) -> Iterator[None]:
    """Call `act` at the first Ctrl-C. A later one has its usual effect, and so has the first if `act` returns False; an
    echo of the first (`ECHO_SECONDS`) has none.

    Only the main thread gets signals; in another one, or where Ctrl-C is ignored, this changes nothing.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield
        return

    acted_at: float | None = None

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal acted_at
        if acted_at is None and act():
            acted_at = time.monotonic()
        elif acted_at is None or time.monotonic() - acted_at > ECHO_SECONDS:
            signal.signal(signal.SIGINT, usual)
            usual(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


class Leaving:
    """Decides at every update boundary whether a run must save and end."""

    def __init__(self, ends_at: float | None = None, wall: Callable[[], float] = time.time) -> None:
        """Take the end of the job in seconds since 1970, by the clock `wall`; None for a run without a time limit."""
        self._ends_at, self._wall = ends_at, wall
        self._asked: str | None = None
        self.stopped = False
        """Whether the run must end at once. Processes that die then are not failures: a job's end kills all of them."""

    @classmethod
    def of_job(cls, environment: Mapping[str, str] = os.environ, wall: Callable[[], float] = time.time) -> Leaving:
        """Return a `Leaving` with the end time of this process's SLURM job, if it has one. A time that has passed is
        that of another job, from whose shell this process has its variables."""
        end = environment.get(JOB_END, "")
        return cls(float(end) if end.isdecimal() and float(end) > wall() else None, wall)

    def ask_at(self, number: signal.Signals) -> None:
        """Request the end when this process, or one that it forks from now on, gets the signal."""
        signal.signal(number, lambda *_: self.ask(number.name))

    def ask(self, why: str) -> None:
        """Request that the run ends at its next boundary. The first reason given is reported."""
        self._asked = self._asked or why

    def reason(self, next_seconds: float) -> str | None:
        """Return why the run must end now, if another update and save take `next_seconds`; None when they still fit."""
        if self._asked is None and self._ends_at is not None:
            left = self._ends_at - self._wall()
            if left < next_seconds + SPARE_SECONDS:
                return f"the job ends in {max(left, 0):.0f} s"
        return self._asked

    @property
    def reason_to_save(self) -> str | None:
        """Why the run must end now if it only has to save."""
        return self.reason(SAVE_SECONDS)
