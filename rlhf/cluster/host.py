"""Holds one worker's object and runs its methods; the same code for a worker in this process and in a Ray worker."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from rlhf import errors
from rlhf.cluster.catch import Raised, catch_awaiting
from rlhf.errors import RlhfError, WorkerFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """A method's value, or what it raised: the exception's class, last line and traceback as text."""

    value: Any = None
    error: str = ""
    message: str = ""
    detail: str = ""
    remote_traceback: str = ""


class WorkerHost:
    """Constructs `factory` and calls its methods: plain ones in `concurrency` threads, coroutines on the event loop."""

    def __init__(self, factory: str, concurrency: int) -> None:
        self._factory = factory
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=factory.rpartition(":")[2])
        self._target: Any = None

    async def construct(self, kwargs: Mapping[str, Any]) -> MethodResult:
        """Import the factory and construct it."""
        return await self._answer(lambda: partial(self._construct, kwargs))

    async def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MethodResult:
        """Run one method of the object, or of an attribute of it that a dotted name leads to."""
        return await self._answer(lambda: partial(attrgetter(method)(self._target), *args, **kwargs))

    async def close(self) -> MethodResult:
        """Call the object's `close`, if it has one."""
        if not hasattr(self._target, "close"):
            return MethodResult()
        return await self._answer(lambda: self._target.close)

    def _construct(self, kwargs: Mapping[str, Any]) -> None:
        self._target = resolve_name(self._factory)(**kwargs)

    async def _answer(self, find: Callable[[], Callable[[], Any]]) -> MethodResult:
        """A missing method is a failure of the call, and not of the host."""
        value = await catch_awaiting(self._run(find))
        return _failure(value.error) if isinstance(value, Raised) else MethodResult(value=value)

    async def _run(self, find: Callable[[], Callable[[], Any]]) -> Any:
        function = find()
        if inspect.iscoroutinefunction(function):
            return await function()
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def resolve_name(name: str) -> Any:
    """The object that `module:name` refers to."""
    module, _, attribute = name.partition(":")
    return vars(importlib.import_module(module))[attribute]


def find_in(folders: Iterable[str]) -> None:
    """Find modules of these folders too, after all others."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def value_of(worker: str, method: str, answer: MethodResult) -> Any:
    """The value of a result; raises its failure if it has one."""
    if not answer.error:
        return answer.value
    known = vars(errors).get(answer.error)
    if isinstance(known, type) and issubclass(known, RlhfError) and _takes_one_message(known):
        raise known(answer.message)
    raise WorkerFailed(worker, method, answer.detail, answer.remote_traceback)


def _failure(error: BaseException) -> MethodResult:
    last_line = traceback.format_exception_only(error)[-1].strip()
    text = "".join(traceback.format_exception(error))
    return MethodResult(error=type(error).__name__, message=str(error), detail=last_line, remote_traceback=text)


def _takes_one_message(kind: type[RlhfError]) -> bool:
    return kind.__init__ is Exception.__init__
