"""When the alarms come that a test may set."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

ALARM = (signal.SIGALRM,)


@contextlib.contextmanager
def alarms_wait() -> Iterator[None]:
    """The alarms that a test may set come later."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, ALARM)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALARM)


@contextlib.contextmanager
def alarms_come() -> Iterator[None]:
    """Where they wait, they come."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALARM)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ALARM)
