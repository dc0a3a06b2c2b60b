"""How fast this machine is, so that a test's deadlines are those of the machine it runs on."""

from __future__ import annotations

import os
import time

FACTOR = "RLHF_TEST_PACE"
LOOPS, REFERENCE_SECONDS = 4_000_000, 0.1
"""What the loop takes on the machine on which the tests' deadlines were chosen."""
LARGEST = 10.0


def measured() -> float:
    """How many times longer than the reference a plain loop takes now, neighbours included; never below 1."""
    began = time.perf_counter()
    for _ in range(LOOPS):
        pass
    return min(max((time.perf_counter() - began) / REFERENCE_SECONDS, 1.0), LARGEST)


def pace() -> float:
    """The factor of this session: measured once, by whoever asks first, and handed on to processes below it."""
    if FACTOR not in os.environ:
        os.environ[FACTOR] = f"{measured():.2f}"
    return float(os.environ[FACTOR])


def scaled(seconds: float) -> float:
    """A deadline in seconds of the reference machine, in seconds of this one."""
    return seconds * pace()
