"""Start a private Ray on this machine, or join the Ray cluster at an address."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from rlhf.cluster.machine import this_machine
from rlhf.cluster.object_store import shared_memory_bytes, store_bytes
from rlhf.errors import PlacementError

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 60.0  # on a loaded machine Ray's command alone imports for 20 s
"""Deadlines for a connection to a head, and for its answer to `ray status`, which imports Ray first."""
PRIVATE_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_worker_niceness": "0",
}
"""A new Ray instance listens on the machine's address, so a token of this run protects it. Prestarted workers lack a
role's environment and would only use cores, so there are none. Ray's output about a dead worker is replaced by the one
line of `WorkerDied`. By default Ray lowers its workers' priority (nice 15), but they do all the work of a run."""


def ray_module() -> Any:
    """The `ray` module, for calls after this process has joined a cluster."""
    import ray

    return ray


@cache
def private_token() -> str:
    """One token for every Ray instance that this process starts, because a process reads its token only once."""
    return secrets.token_hex(32)


def start_ray(temp_dir: Path, object_store_bytes: int = 0) -> None:
    """Start a private Ray instance on this machine, with an object store of at least this size where there is room.

    Raises `PlacementError` if this process imported Ray earlier: Ray reads its settings at the import.
    """
    if "ray" in sys.modules and any(os.environ.get(name) != value for name, value in PRIVATE_RAY.items()):
        raise PlacementError(
            "this process has imported Ray (vLLM imports it too), which reads its settings only then; start the run in "
            "a new process, or before that import"
        )
    os.environ.update(PRIVATE_RAY | {"RAY_AUTH_TOKEN": private_token()})
    machine = this_machine()
    _quiet_ray().init(
        address="local",
        num_cpus=int(machine.cpus),
        num_gpus=int(machine.gpus),
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=store_bytes(object_store_bytes, shared_memory_bytes()[1]),
        _temp_dir=str(temp_dir),
    )


def join_ray(address: str) -> str:
    """Join the Ray cluster at an address, and return its head's host. Raises `PlacementError` when no head answers
    there, or it refuses this process. Hangs on a machine that is not one of its nodes."""
    ray = _quiet_ray()
    if names_a_port(address):
        check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise no_cluster(address, str(error)) from None
    return str(ray.get_runtime_context().gcs_address).rpartition(":")[0]


def names_a_port(address: str) -> bool:
    """Whether an address is `HOST:PORT`; Ray resolves `auto` and `ray://…` itself."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and "/" not in host


def check_answers(address: str) -> None:
    """Check that a Ray head answers at `HOST:PORT` and accepts this process's token, by `ray status` in a process that
    can be killed: in this one Ray would retry for minutes. Raises `PlacementError`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise no_cluster(address, str(error)) from None
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise no_cluster(address, f"what listens there does not answer Ray within {ANSWER_SECONDS:g} s") from None
    if asked.returncode and "token" in asked.stderr:
        raise PlacementError(
            f"the Ray cluster at {address!r} refuses this process's token, or it has none; "
            "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as the cluster has them"
        )
    if asked.returncode:
        raise no_cluster(address, asked.stderr.strip().rpartition("\n")[2])


def no_cluster(address: str, cause: str) -> PlacementError:
    """The error for an address without a cluster, with the cause from the library's message."""
    return PlacementError(
        f"no Ray cluster answers at {address!r} ({cause.strip().partition(chr(10))[0]}); correct cluster.address"
    )


def keep_our_sigterm() -> None:
    """Restore the SIGTERM handler that Ray replaces when a process joins. Ray's crash handler prints stack traces and
    ends the process at a second SIGTERM, but SLURM and supervisors send several."""
    ours = signal.getsignal(signal.SIGTERM)
    if ours is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)


def _quiet_ray() -> Any:
    ray = ray_module()
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray
