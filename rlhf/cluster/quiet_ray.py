"""Ray, imported after its environment is set; its warnings are about itself, and its signal handlers for itself."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any


def ray_module() -> Any:
    """Ray, for what it is asked once this process has joined."""
    import ray

    return ray


def quiet_ray() -> Any:
    """The module, before this process joins: with its environment as it is."""
    ray = ray_module()
    if not ray.is_initialized():
        ray._raylet.Config.initialize(
            ""
        )  # from this environment: whoever imported Ray before, as vLLM does, had another one
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


def keep_our_sigterm() -> None:
    """Ray's crash handler for SIGTERM, set when a process joins, gives way to the one that was there: it prints stacks,
    and ends the process when it hears a second one, while SLURM and supervisors send several."""
    ours = signal.getsignal(signal.SIGTERM)
    if ours is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)
