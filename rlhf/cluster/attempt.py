"""Somebody else's code, run to an outcome: what it returns, or what it raised, as data.

Environments, scorers, agents, callbacks and vLLM may raise anything at any time. Who calls them does it by these two
functions and decides what a failure is called. Broadly catch else only `rlhf/reward/checking/`, which runs in a sandbox
without this package, and the last frame of a process or of a run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Kinds = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """It ended with an error."""

    error: BaseException


def attempt(work: Callable[[], T], *, also: Kinds = ()) -> T | Raised:
    """What `work` returns, or `Raised`. `also` are kinds beyond `Exception`: `SystemExit` where code that calls
    `sys.exit` has broken and its host goes on, `BaseException` where a thread must tell whatever ended its work."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - somebody else's code: whatever it raises becomes data, here alone
        return Raised(error)
    except also as error:
        return Raised(error)


async def attempt_awaiting(work: Awaitable[T], *, also: Kinds = (), but: Kinds = ()) -> T | Raised:
    """As `attempt`, of what is awaited. What is of the kinds `but` passes; so does a cancellation, unless `also` names
    it."""
    try:
        return await work
    except but:
        raise
    except Exception as error:  # noqa: BLE001 - somebody else's code: whatever it raises becomes data, here alone
        return Raised(error)
    except also as error:
        return Raised(error)
