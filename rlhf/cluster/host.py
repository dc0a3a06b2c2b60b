"""Holds one worker's object and runs its methods; the same code for a worker in this process and in a Ray worker."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from rlhf import errors
from rlhf.errors import (
    Raised,
    RlhfError,
    WorkerFailed,
    catch,
    catch_awaiting,
    describe_error,
    log_traceback,
    traceback_of,
)
from rlhf.tracing import trace_worker


@dataclass(frozen=True, slots=True)
class MethodFailure:
    """An exception that a method raised, as text: its class, its message, one line with its place, and its
    traceback."""

    error: str
    message: str
    line: str
    traceback: str


class TimedOutcome(NamedTuple):
    """A method's value or its failure, when it started (seconds since 1970) and how long it took, by its own clock."""

    outcome: Any
    start: float
    seconds: float


class WorkerHost:
    """Constructs `factory` and calls its methods: plain ones in `concurrency` threads, coroutines on the event loop.

    Every call returns the method's value, or a `MethodFailure`.
    """

    def __init__(self, factory: str, concurrency: int) -> None:
        self._factory = factory
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=factory.rpartition(":")[2])
        self._target: Any = None

    async def construct(self, kwargs: Mapping[str, Any]) -> Any:
        """Import the factory and construct it."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._construct, kwargs)
        await asyncio.wait([running])
        return outcome_of(running)

    async def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TimedOutcome:
        """Run one method of the object, or of an attribute of it that a dotted name leads to."""
        start, began = time.time(), time.perf_counter()
        running = self.begin(method, args, kwargs)
        await asyncio.wait([running])
        return TimedOutcome(outcome_of(running), start, time.perf_counter() - began)

    def begin(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Start a method, whose outcome is `outcome_of` the future. A missing method is a failure of the call."""
        loop = asyncio.get_running_loop()
        function = catch(lambda: partial(attrgetter(method)(self._target), *args, **kwargs))
        if isinstance(function, Raised):
            failed = loop.create_future()
            failed.set_result(function)
            return failed
        if inspect.iscoroutinefunction(function):
            return loop.create_task(catch_awaiting(function()))
        return loop.run_in_executor(self._threads, function)

    async def close(self) -> Any:
        """Call the object's `close`, if it has one."""
        return (await self.call("close", (), {})).outcome if hasattr(self._target, "close") else None

    def _construct(self, kwargs: Mapping[str, Any]) -> None:
        self._target = resolve_name(self._factory)(**kwargs)


def outcome_of(done: asyncio.Future[Any]) -> Any:
    """Return what a method returned, or its `MethodFailure`."""
    error = done.exception()  # no frame of ours is between a thread and its method
    value = Raised(error) if error else done.result()
    if not isinstance(value, Raised):
        return value
    line, text = describe_error(value.error), traceback_of(value.error)
    if not isinstance(value.error, RlhfError) or value.error.__cause__:
        log_traceback(line, text)
    return MethodFailure(type(value.error).__name__, str(value.error), line, text)


def resolve_name(name: str) -> Any:
    """Return the object that `module:name` refers to."""
    module, _, attribute = name.partition(":")
    return vars(importlib.import_module(module))[attribute]


def traced_value(worker: str, method: str, timed: TimedOutcome) -> Any:
    """Trace a method, and return its value or raise its failure."""
    trace_worker(worker, method, timed.start, timed.seconds)
    return value_of(worker, method, timed.outcome)


def value_of(worker: str, method: str, outcome: Any) -> Any:
    """Return a method's value, or raise its failure."""
    if not isinstance(outcome, MethodFailure):
        return outcome
    known = vars(errors).get(outcome.error)
    if isinstance(known, type) and issubclass(known, RlhfError) and known.__init__ is Exception.__init__:
        raise known(outcome.message)  # it is constructed from one message
    raise WorkerFailed(worker, method, outcome.line, outcome.traceback)
