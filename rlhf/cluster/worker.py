"""Interfaces of a worker, as its caller sees it, and of a cluster, as the controller sees it.

Only plain data crosses between them: numbers, strings, containers, frozen dataclasses of `rlhf`, and numpy arrays. An
object of a heavy library (a torch tensor, a vLLM output) would make the controller import that library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Never, Protocol

from rlhf.cluster.roles import Role


class Worker(Protocol):
    """One object, in a process of its own or in this process."""

    name: str

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        """Call a method, synchronous or not, and return its value.

        Raises `WorkerDied` when the worker's process ended, `DeadlinePassed` when the answer is late (the call itself
        may continue), and `WorkerFailed` when the method raised. An `RlhfError` constructed from one message is raised
        again as itself, so that a user's error keeps its type.
        """
        ...


class Cluster(Protocol):
    """A set of workers. `start` reserves resources and passes the table of workers to `report`; `spawn` constructs a
    role's objects; `watch` raises when a worker dies; `stop` ends all workers."""

    async def start(self, roles: Sequence[Role], log_dir: Path, report: Callable[[str], None] = ...) -> None: ...
    async def spawn(self, role: str, kwargs_of: Callable[[int], Mapping[str, Any]]) -> Sequence[Worker]: ...
    def workers(self, role: str) -> Sequence[Worker]: ...
    async def watch(self) -> Never: ...
    async def stop(self) -> None: ...
