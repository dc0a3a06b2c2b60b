"""The end of a run: its records are closed in every case, the summary first, and the error that ended it is
reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rlhf.cluster.watch import END_OF_ALL_SECONDS, telling_error
from rlhf.controller.preemption import Leaving
from rlhf.errors import RlhfError, WorkerDied
from rlhf.runs.summary import STOPPED, Summary


async def closed(run: Awaitable[str], close: Callable[[str], Summary], leaving: Leaving) -> Summary:
    """Wait for the outcome of `run` and call `close` with it; when the run raises, with its error.

    A worker's death is recorded only after `END_OF_ALL_SECONDS`: the end of a job kills all workers, and may reach this
    process later than them. A run that fails because of a full disk cannot write its summary either; then its own
    failure is raised.
    """
    try:
        outcome = await run
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        _close_after(str(error) or STOPPED, close, leaving)  # a worker death sets the message, a user does not
        raise
    except BaseException as error:  # every end of a run is recorded in its summary, and raised again
        cause = telling_error(error)
        try:
            if isinstance(cause, WorkerDied):
                await asyncio.sleep(END_OF_ALL_SECONDS)  # a stop signal cancels it
        finally:
            _close_after(str(cause), close, leaving)
        raise
    return close(STOPPED if leaving.stopped else outcome)


def each(*steps: Callable[[], object]) -> None:
    """Call every step, even if earlier ones fail; then raise the first failure."""
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except (OSError, RlhfError) as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _close_after(outcome: str, close: Callable[[str], Summary], leaving: Leaving) -> None:
    with suppress(OSError, RlhfError):
        close(STOPPED if leaving.stopped else outcome)
