"""The actor process of a Ray worker: one process that holds one object. Also imported in the worker's process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Never

from rlhf.cluster.host import WorkerHost, resolve_name
from rlhf.cluster.interfaces import interface_environment, interface_toward
from rlhf.cluster.machine import VISIBLE
from rlhf.cluster.ray_connection import ray_module
from rlhf.cluster.stacks import write_stacks_when_asked
from rlhf.config import search_first


class RayHost(WorkerHost):
    """A `WorkerHost` in its own process, whose output goes to `<log_dir>/<worker>.log`.

    In a cluster that was joined, `head` is the address of its head: this process talks to other workers over the
    network interface of the route to it. It sees the `gpus` of other workers, or by default those that Ray gave it.
    """

    def __init__(
        self,
        factory: str,
        imports: str,
        concurrency: int,
        environment: Mapping[str, str],
        python_path: Sequence[str],
        log_file: str,
        head: str | None,
        gpus: Sequence[str] | None,
    ) -> None:
        redirect_output(Path(log_file))
        write_stacks_when_asked(sys.stderr)
        os.environ.update(environment)
        if gpus is None:
            gpus = [str(gpu) for gpu in ray_module().get_runtime_context().get_accelerator_ids().get("GPU", ())]
        self._gpus = gpus
        os.environ[VISIBLE] = ",".join(gpus)  # Ray shows all GPUs to a worker that reserves none
        search_first(python_path)
        end_at_once_on_sigterm()
        if head is not None:
            use_interface_toward(head)
        super().__init__(factory, concurrency)
        self._importing = Thread(target=resolve_name(imports), daemon=True) if imports else None
        if self._importing:
            self._importing.start()

    async def process(self) -> tuple[str, int, Sequence[str]]:
        """Return Ray's id of this node, the process id, and the GPUs as CUDA_VISIBLE_DEVICES names them."""
        return ray_module().get_runtime_context().get_node_id(), os.getpid(), self._gpus

    async def construct(self, kwargs: Mapping[str, Any]) -> Any:
        if self._importing:  # if two threads import the same packages, one may see half-initialised modules
            await asyncio.to_thread(self._importing.join)
        return await super().construct(kwargs)

    async def live(self) -> Never:
        """Never return: the failure of this call reports the death of an idle worker."""
        while True:
            await asyncio.sleep(3600)


def use_interface_toward(head: str) -> None:
    """Set the network interface of the route to `head` for gloo and nccl, which read it when they start. A value in the
    node's own environment is kept. Raises `PlacementError`."""
    interface = interface_toward(head)
    for variable, value in interface_environment(interface).items():
        os.environ.setdefault(variable, value)
    chosen = ", ".join(f"{variable}={os.environ[variable]}" for variable in interface_environment(interface))
    print(f"on {socket.gethostname()}: {interface.name} ({interface.address}) leads to {head}; {chosen}", flush=True)


def end_at_once_on_sigterm() -> None:
    """Exit at once on SIGTERM. Ray's own handler waits for pending calls, and `live` never ends. Actors may be created
    outside the main thread, where Python cannot set signal handlers, so the C library sets it.

    If `rlhf node` started Ray, SIGTERM is blocked and this process continues: the handler then only computes an
    absolute value. Programs that this process starts receive SIGTERM as usual.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    goes_on = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    libc.signal(signal.SIGTERM, ctypes.cast(libc.abs, ctypes.c_void_p) if goes_on else None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def redirect_output(log_file: Path) -> None:
    """Redirect this process's stdout and stderr to one file, including output of C libraries and children."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - open for the lifetime of the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
