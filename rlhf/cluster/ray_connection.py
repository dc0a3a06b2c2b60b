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
from rlhf.errors import PlacementError

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
"""Deadlines for a connection to a head, and for its answer to `ray status`, which imports Ray first."""
LEAST_BYTES = 256 << 20
"""Of an object store: shared memory in which batches lie between the controller and the ranks."""
SHARE, NODE_SHARE = 0.5, 1 / 16
"""The largest share of the free shared memory, where vLLM's and NCCL's segments lie too; and the share of a node's
shared memory for a store that is made before the run is known."""
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
    """Return the `ray` module, for calls after this process has joined a cluster."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


@cache
def private_token() -> str:
    """Return one token for every Ray instance that this process starts, because a process reads its token once."""
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
    ray_module().init(
        address="local",
        num_cpus=int(machine.cpus),
        num_gpus=int(machine.gpus),
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=store_bytes(object_store_bytes, shared_memory_bytes()[1]),
        _temp_dir=str(temp_dir),
    )


def store_bytes(needed: float, free: int) -> int:
    """Return the object store's size for objects of `needed` bytes with `free` bytes of shared memory."""
    return max(LEAST_BYTES, int(min(needed, SHARE * free)))


def node_store_bytes() -> int:
    """Return the object store's size on a node whose run is not known yet."""
    total, free = shared_memory_bytes()
    return store_bytes(NODE_SHARE * total, free)


def shared_memory_bytes() -> tuple[int, int]:
    """Return the bytes of /dev/shm, where Ray has its store: all, and free; 0 if it is missing."""
    try:
        found = os.statvfs("/dev/shm")
    except FileNotFoundError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def join_ray(address: str) -> str:
    """Join the Ray cluster at an address, and return its head's host. Raises `PlacementError` when no head answers
    there, or it refuses this process. Hangs on a machine that is not one of its nodes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:  # Ray resolves `auto` and `ray://…` itself
        check_answers(address)
    ray = ray_module()
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise no_cluster(address, str(error)) from None
    return str(ray.get_runtime_context().gcs_address).rpartition(":")[0]


def check_answers(address: str) -> None:
    """Check that a Ray head answers at `HOST:PORT` and accepts this process's token, by `ray status` in a process that
    can be killed: in this one Ray would retry for minutes. Raises `PlacementError`."""
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        status = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except OSError as error:
        raise no_cluster(address, str(error)) from None
    except subprocess.TimeoutExpired:
        raise no_cluster(address, f"its server does not answer Ray within {ANSWER_SECONDS:g} s") from None
    reason = status.stderr.strip().rpartition("\n")[2]
    if status.returncode and "token" in reason.lower():
        raise PlacementError(
            f"the Ray cluster at {address!r} refuses this process's token, or a missing one; "
            "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as the cluster has them"
        )
    if status.returncode:
        raise no_cluster(address, reason)


def no_cluster(address: str, cause: str) -> PlacementError:
    """Return the error for an address without a cluster, with the first line of the cause."""
    return PlacementError(
        f"no Ray cluster answers at {address!r} ({cause.strip().partition(chr(10))[0]}); correct cluster.address"
    )


def keep_our_sigterm() -> None:
    """Restore the SIGTERM handler that Ray replaces when a process joins. Ray's crash handler prints stack traces and
    ends the process at a second SIGTERM, but SLURM and supervisors send several."""
    ours = signal.getsignal(signal.SIGTERM)
    if ours is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)
