"""Typed calls of a worker's methods: written as calls on its object, checked by type checkers, sent as plain names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, overload

from rlhf.cluster.worker import Worker

T = TypeVar("T")
R = TypeVar("R")


class WorkerHandle(Generic[T]):
    """A worker that holds a `T`.

    In `await handle.call(lambda engine: engine.submit(requests), timeout_seconds=30)` the method, its arguments and
    its result are checked against the class. The function itself stays here: it is given something that records which
    method it calls, of the object or of one of the object's public parts, and that one call is sent.
    """

    def __init__(self, worker: Worker) -> None:
        self.name, self._worker = worker.name, worker

    @overload
    async def call(self, ask: Callable[[T], Coroutine[Any, Any, R]], *, timeout_seconds: float) -> R: ...
    @overload
    async def call(self, ask: Callable[[T], R], *, timeout_seconds: float) -> R: ...
    async def call(self, ask: Callable[[T], Any], *, timeout_seconds: float) -> Any:
        """The result of `ask` on the worker's object; a coroutine is awaited in the worker. Raises as `Worker.call`
        does."""
        call = ask(cast(T, CallRecorder()))
        if not isinstance(call, MethodCall):
            raise TypeError(f"{self.name} was to be asked by a function that ends with the call of a method")
        return await self._worker.call(call.method, *call.args, timeout_seconds=timeout_seconds, **call.kwargs)


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
            raise AttributeError(f"{name} is not public: a worker is asked by its public methods")
        return CallRecorder((*self._path, name))

    def __call__(self, *args: Any, **kwargs: Any) -> MethodCall:
        return MethodCall(".".join(self._path), args, kwargs)
