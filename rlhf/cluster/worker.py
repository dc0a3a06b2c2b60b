"""A worker as its caller sees it, and a cluster as the controller sees it.

What crosses between them is plain: numbers, strings, containers, frozen dataclasses of `rlhf`, and numpy arrays. An
object of a heavy library (a torch tensor, a vLLM output) would make the controller import that library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Never, Protocol

from rlhf.cluster.resources import Plan, Role


class Worker(Protocol):
    """One object in a process of its own, or in this one."""

    name: str

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        """Call a method, synchronous or not, and return what it returns.

        Raises `WorkerDied` when the worker's process ended, `DeadlinePassed` when the answer is late (the call itself
        may go on), and `WorkerFailed` when the method raised; an `RlhfError` made from one message is raised again as
        itself, so that a user's error stays one.
        """
        ...


class Cluster(Protocol):
    """`start` plans, tells the plan and gives the workers their places, `spawn` constructs a role's objects, `watch`
    raises when one dies, `stop` ends all."""

    async def start(self, roles: Sequence[Role], log_dir: Path, tell: Callable[[Plan], None] = ...) -> Plan: ...
    async def spawn(self, role: str, kwargs_of: Callable[[int], Mapping[str, Any]]) -> Sequence[Worker]: ...
    def workers(self, role: str) -> Sequence[Worker]: ...
    async def watch(self) -> Never: ...
    async def stop(self) -> None: ...
