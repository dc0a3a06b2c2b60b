from __future__ import annotations

import asyncio

import pytest

from rlhf.errors import Raised, catch, catch_awaiting


def raising(error: BaseException) -> object:
    raise error


async def raising_later(error: BaseException) -> object:
    raise error


def test_what_is_returned_or_raised_becomes_data() -> None:
    error = ValueError("no")
    assert catch(lambda: 3) == 3
    assert catch(lambda: raising(error)) == Raised(error)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_what_ends_a_process_or_a_task_passes_unless_it_is_named(kind: type[BaseException]) -> None:
    error = kind()
    with pytest.raises(kind):
        catch(lambda: raising(error))
    assert catch(lambda: raising(error), also=kind) == Raised(error)
    assert catch(lambda: raising(error), also=BaseException) == Raised(error)


async def test_of_what_is_awaited_a_cancellation_can_pass_where_all_else_is_data() -> None:
    error, cancelled = SystemExit(2), asyncio.CancelledError()
    assert await catch_awaiting(raising_later(error), also=BaseException, but=asyncio.CancelledError) == Raised(error)
    with pytest.raises(asyncio.CancelledError):
        await catch_awaiting(raising_later(cancelled), also=BaseException, but=asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        await catch_awaiting(raising_later(cancelled))
