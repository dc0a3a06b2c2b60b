"""Processes of this machine by what their environment says, and waiting with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil


def with_variable(name: str, value: str, **more: str) -> list[psutil.Process]:
    """Living processes of this machine in whose environment the variables have these values."""
    wanted, found = {name: value, **more}.items(), []
    for process in psutil.process_iter():
        try:
            if wanted <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [process for process in found if process.pid != os.getpid()]


def by_name(processes: Iterable[psutil.Process]) -> list[tuple[str, psutil.Process]]:
    """The processes that still live, with their names."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append((process.name(), process))
    return found


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL for each; the end of one may have been the end of the next."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
