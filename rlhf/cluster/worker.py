"""Interfaces of a worker, as its caller sees it, and of a cluster, as the controller sees it.

Only plain data crosses between them: numbers, strings, containers, frozen dataclasses of `rlhf`, and numpy arrays. An
object of a heavy library (a torch tensor, a vLLM output) would make the controller import that library.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Never, Protocol, TypeVar, cast, overload

from rlhf.cluster.roles import Role
from rlhf.errors import WorkerDied

T = TypeVar("T")
R = TypeVar("R")


class Worker(Protocol):
    """One object, in its own process or in this one."""

    name: str

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        """Call a method, synchronous or not, and return its value.

        Raises `WorkerDied` when the worker's process ended, `DeadlinePassed` when the answer is late (the call itself
        may continue), and `WorkerFailed` when the method raised. An `RlhfError` constructed from one message is raised
        again as itself, so that a user's error keeps its type.
        """
        ...

    async def until_death(self) -> WorkerDied:
        """Wait for the process to end, and return why; one in this process never ends."""
        ...


class Cluster(Protocol):
    """A set of workers. `start` reserves resources and passes the table of workers to `report`; `spawn` constructs a
    role's objects; `replace` ends a worker and constructs another in its place, with the next free index, and
    `remove` ends one; `watch` raises when a worker dies that is not replaced; `stop` ends all
    workers."""

    async def start(self, roles: Sequence[Role], log_dir: Path, report: Callable[[str], None] = ...) -> None: ...
    async def spawn(self, role: str, kwargs_of: Callable[[int], Mapping[str, Any]]) -> Sequence[Worker]: ...
    async def remove(self, worker: Worker) -> None: ...
    async def replace(self, worker: Worker) -> Worker: ...
    def workers(self, role: str) -> Sequence[Worker]: ...
    async def watch(self) -> Never: ...
    async def stop(self) -> None: ...


class WorkerHandle(Generic[T]):
    """A worker that holds a `T`, with calls that type checkers check.

    In `await handle.call(lambda engine: engine.submit(requests), timeout_seconds=30)` the lambda runs here, on a
    recorder of the method that it calls, of the object or of one of its public parts. That one call is sent.
    """

    def __init__(self, worker: Worker) -> None:
        self.name, self._worker = worker.name, worker

    @overload
    def call(self, ask: Callable[[T], Coroutine[Any, Any, R]], *, timeout_seconds: float) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(self, ask: Callable[[T], R], *, timeout_seconds: float) -> Coroutine[Any, Any, R]: ...
    def call(self, ask: Callable[[T], Any], *, timeout_seconds: float) -> Coroutine[Any, Any, Any]:
        """Return the worker's call, which gives the result of `ask` on its object; a coroutine is awaited in the
        worker. Raises as `Worker.call` does."""
        call = ask(cast(T, CallRecorder()))
        if not isinstance(call, MethodCall):
            raise TypeError(f"{self.name} can only run a function that ends with the call of a method")
        return self._worker.call(call.method, *call.args, timeout_seconds=timeout_seconds, **call.kwargs)


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A method by its dotted name, and its arguments."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class CallRecorder:
    """Replaces a worker's object in a function that calls one of its methods, and records that call."""

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._path = path

    def __getattr__(self, name: str) -> CallRecorder:
        if name.startswith("_"):
            raise AttributeError(f"{name} is not public: only public methods of a worker can be called")
        return CallRecorder((*self._path, name))

    def __call__(self, *args: Any, **kwargs: Any) -> MethodCall:
        return MethodCall(".".join(self._path), args, kwargs)
