"""The Ray side of a worker: one actor process holding one object. Imported in the worker's process too."""

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

from rlhf.cluster.host import MethodResult, WorkerHost, find_in, resolve_name
from rlhf.cluster.quiet_ray import ray_module
from rlhf.transfer.interfaces import interface_environment, interface_toward

MALLOC_PARAMETERS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3}
"""`M_TRIM_THRESHOLD`, `M_TOP_PAD` and `M_MMAP_THRESHOLD` of malloc.h."""
LARGEST_INT = 2**31 - 1


class RayHost:
    """A `WorkerHost` in a process of its own, whose output goes to `<log_dir>/<worker>.log`.

    In a cluster that was joined, `head` is its head's address: what this process sends to other workers takes the
    interface that leads there.
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
    ) -> None:
        redirect_output(Path(log_file))
        set_environment(environment)
        find_in(python_path)
        end_at_once_on_sigterm()
        if head is not None:
            use_interface_toward(head)
        self._host = WorkerHost(factory, concurrency)
        self._importing = Thread(target=resolve_name(imports), daemon=True) if imports else None
        if self._importing:
            self._importing.start()

    async def process(self) -> tuple[str, int]:
        """Ray's id of the node this runs on, and the process id there."""
        return ray_module().get_runtime_context().get_node_id(), os.getpid()

    async def construct(self, kwargs: Mapping[str, Any]) -> MethodResult:
        if self._importing:  # two threads that import the same packages can meet half-made modules
            await asyncio.to_thread(self._importing.join)
        return await self._host.construct(kwargs)

    async def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MethodResult:
        return await self._host.call(method, args, kwargs)

    async def close(self) -> MethodResult:
        return await self._host.close()

    async def live(self) -> Never:
        """Never answers: that this call fails is how an idle worker's death is noticed."""
        while True:
            await asyncio.sleep(3600)


def set_environment(environment: Mapping[str, str]) -> None:
    """The role's variables. glibc has read those of its allocator already: it is told again."""
    os.environ.update(environment)
    libc = ctypes.CDLL(None)
    for variable, parameter in MALLOC_PARAMETERS.items():
        if variable in environment:
            libc.mallopt(parameter, min(int(environment[variable]), LARGEST_INT))


def use_interface_toward(head: str) -> None:
    """Set the interface of the route to `head` for gloo and nccl, which read it when they start. What the node's own
    environment says already stays. Raises `PlacementError`."""
    interface = interface_toward(head)
    for variable, value in interface_environment(interface).items():
        os.environ.setdefault(variable, value)
    chosen = ", ".join(f"{variable}={os.environ[variable]}" for variable in interface_environment(interface))
    print(f"on {socket.gethostname()}: {interface.name} ({interface.address}) leads to {head}; {chosen}", flush=True)


def end_at_once_on_sigterm() -> None:
    """Ray's own handler waits for pending calls, of which `live` never ends. Actors may be made outside the main
    thread, where Python sets no handlers, hence the C library's."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGTERM, None)


def redirect_output(log_file: Path) -> None:
    """Send this process's stdout and stderr, those of its C libraries and children included, to one file."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for the life of the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
