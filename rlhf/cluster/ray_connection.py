"""Start a private Ray on this machine, or join the Ray cluster at an address."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf.cluster.machine import this_machine
from rlhf.errors import PlacementError, Raised, WorkerFailed, catch, describe_error, traceback_of

CONNECT_SECONDS = 5.0
"""Deadline for a connection to a head."""
LEAST_STORE_BYTES = 256 << 20
PRIVATE_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_worker_niceness": "0",
    "RAY_task_events_report_interval_ms": "0",
}
"""A new Ray instance listens on the machine's address, so a token of this run protects it. Prestarted workers lack a
role's environment and would only use cores, so there are none. Ray's output about a dead worker is replaced by the one
line of `WorkerDied`. By default Ray lowers its workers' priority (nice 15), but they do all the work of a run; and it
keeps a record of every call, which takes memory with every update."""


def ray_module() -> Any:
    """Return the `ray` module, for calls after this process has joined a cluster."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


@cache
def private_token() -> str:
    """Return one token for every Ray instance that this process starts, because a process reads its token once."""
    return secrets.token_hex(32)


def start_ray(temp_dir: Path) -> None:
    """Start a private Ray instance on this machine.

    Raises `PlacementError` if this process imported Ray earlier: Ray reads its settings at the import; `WorkerFailed`
    where Ray gives up.
    """
    if "ray" in sys.modules and any(os.environ.get(name) != value for name, value in PRIVATE_RAY.items()):
        raise PlacementError(
            "this process has imported Ray (vLLM imports it too), which reads its settings only then; start the run in "
            "a new process, or before that import"
        )
    os.environ.update(PRIVATE_RAY | {"RAY_AUTH_TOKEN": private_token()})
    machine = this_machine()
    start = partial(
        ray_module().init,
        address="local",
        num_cpus=int(machine.cpus),
        num_gpus=int(machine.gpus),
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=object_store_bytes(),
        runtime_env=quoted_python(sys.executable),
        _temp_dir=str(temp_dir),
    )
    with _without_monitors():
        ended = catch(start)
    if isinstance(ended, Raised):  # on a busy machine, after 30 s that Ray has fixed
        raise WorkerFailed("ray", "init", describe_error(ended.error), traceback_of(ended.error))


def quoted_python(executable: str) -> dict[str, str]:
    """Return a runtime environment for an interpreter path with a space: Ray puts the path unquoted into a shell
    command, which fails."""
    quoted = shlex.quote(executable)
    return {} if quoted == executable else {"py_executable": quoted}


@contextmanager
def _without_monitors() -> Iterator[None]:
    """Start neither the autoscaler's monitor nor the one that copies logs to the driver: this Ray has one node, and its
    workers write their own logs. Each is a Python process; `ray.init` has no arguments for them."""
    parameter: Any = import_module("ray._private.parameter")
    chosen = parameter.RayParams
    parameter.RayParams = partial(chosen, no_monitor=True, include_log_monitor=False)
    try:
        yield
    finally:
        parameter.RayParams = chosen


def object_store_bytes() -> int:
    """Return the limit of the object store, in which batches lie on their way to the ranks: a sixteenth of the shared
    memory, where vLLM's and NCCL's segments lie too. Ray writes what exceeds it to the disk."""
    found = os.statvfs("/dev/shm")
    return max(LEAST_STORE_BYTES, found.f_blocks * found.f_frsize // 16)


def join_ray(address: str, seconds: float) -> str:
    """Join the Ray cluster at an address, and return its head's host. Raises `PlacementError` when no head answers
    there in time, or it refuses this process. Hangs on a machine that is not one of its nodes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:  # Ray resolves `auto` and `ray://…` itself
        check_answers(address, seconds)
    ray = ray_module()
    try:
        env = quoted_python(sys.executable)
        ray.init(address=address, log_to_driver=False, configure_logging=False, runtime_env=env)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise no_cluster(address, str(error)) from None
    return str(ray.get_runtime_context().gcs_address).rpartition(":")[0]


def check_answers(address: str, seconds: float) -> None:
    """Check that a Ray head answers at `HOST:PORT` and accepts this process's token, by `ray status` in a process that
    can be killed: in this one Ray would retry for minutes. It imports Ray, which takes long where all nodes of a job
    read one file system. Raises `PlacementError`."""
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        status = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except OSError as error:
        raise no_cluster(address, str(error)) from None
    except subprocess.TimeoutExpired:
        raise no_cluster(address, f"its server does not answer Ray within {seconds:g} s") from None
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
