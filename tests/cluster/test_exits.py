"""How a process ended, told by the kernel."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from rlhf.cluster.ray_worker import exit_cause
from tests.pace import scaled


@pytest.mark.parametrize(("number", "told"), [(signal.SIGKILL, "killed by SIGKILL"), (0, "exited with code 3")])
def test_the_cause_is_told_although_the_parent_reaps_late(number: int, told: str) -> None:
    child = os.fork()
    if child == 0:
        while number:
            signal.pause()
        os._exit(3)
    descriptor = os.pidfd_open(child)
    os.kill(child, number)
    reaper = threading.Timer(0.3, os.waitpid, (child, 0))
    reaper.start()
    assert asyncio.run(exit_cause(descriptor, scaled(10))) == told
    reaper.join()


def test_of_a_process_that_lives_nothing_is_told() -> None:
    descriptor = os.pidfd_open(os.getpid())
    assert asyncio.run(exit_cause(descriptor, 0.1)) is None
