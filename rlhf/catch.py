"""Runs third-party code and returns its outcome as data: the return value, or the exception that it raised.

Only two other places catch broadly: `rlhf/reward/code/`, which runs in a sandbox without this package, and the last
frame of a process or of a run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """The call ended with this exception."""

    error: BaseException


def catch(work: Callable[[], T], *, also: ExceptionTypes = ()) -> T | Raised:
    """Return the value of `work`, or `Raised`. `also` names exception types beyond `Exception`: `SystemExit` where a
    call of `sys.exit` must not end the process, `BaseException` where a thread must report every end of its work."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - third-party code: any exception becomes data, only in this file
        return Raised(error)
    except also as error:
        return Raised(error)


async def catch_awaiting(work: Awaitable[T], *, also: ExceptionTypes = (), but: ExceptionTypes = ()) -> T | Raised:
    """Like `catch`, for an awaitable. Exceptions of the types `but` propagate; so does a cancellation, unless `also`
    names it."""
    try:
        return await work
    except but:
        raise
    except Exception as error:  # noqa: BLE001 - third-party code: any exception becomes data, only in this file
        return Raised(error)
    except also as error:
        return Raised(error)
