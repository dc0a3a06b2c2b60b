"""Imports Ray after the environment is set, without Ray's own warnings and its SIGTERM handler."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any


def ray_module() -> Any:
    """The `ray` module, for calls after this process has joined a cluster."""
    import ray

    return ray


def quiet_ray() -> Any:
    """The `ray` module before this process joins a cluster, configured from the current environment."""
    ray = ray_module()
    if not ray.is_initialized():
        ray._raylet.Config.initialize(
            ""
        )  # from the current environment: vLLM, for example, may have imported Ray earlier with another one
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


def keep_our_sigterm() -> None:
    """Restore the SIGTERM handler that Ray replaces when a process joins. Ray's crash handler prints stack traces and
    ends the process at a second SIGTERM, but SLURM and supervisors send several."""
    ours = signal.getsignal(signal.SIGTERM)
    if ours is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)
