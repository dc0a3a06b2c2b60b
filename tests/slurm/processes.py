"""Processes of this machine by what their environment says, and waiting with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

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


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
