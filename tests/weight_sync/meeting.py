"""Members of a transfer group, each in a thread of this process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rlhf.weight_sync.types import Endpoint, Rendezvous


def rendezvous(world_size: int, *, backend: str = "gloo", timeout_seconds: float = 20, **changes: Any) -> Rendezvous:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return Rendezvous(
        backend=backend,
        endpoint=Endpoint(address="127.0.0.1", port=port, nccl_id="bmNjbA==" if backend == "nccl" else ""),
        world_size=world_size,
        timeout_seconds=timeout_seconds,
        **changes,
    )


def at_once(*calls: Callable[[], Any]) -> list[Future[Any]]:
    """Run each call in its own thread; returns when all have ended."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [threads.submit(call) for call in calls]


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    return [future.result() for future in futures]
