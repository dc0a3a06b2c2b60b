from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlhf.errors import PieceFailed, Raised, catch, catch_awaiting, naming_leaks


def raising(error: BaseException) -> object:
    raise error


async def raising_later(error: BaseException) -> object:
    raise error


def test_what_is_returned_or_raised_becomes_data() -> None:
    error = ValueError("no")
    assert catch(lambda: 3) == 3
    assert catch(lambda: raising(error)) == Raised(error)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_ends_a_process_or_a_task_is_data_when_third_party_code_raises_it(kind: type[BaseException]) -> None:
    error = kind()
    assert catch(lambda: raising(error)) == Raised(error)


def test_ctrl_c_passes_in_the_main_thread_alone() -> None:
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        catch(lambda: raising(error))
    assert catch(lambda: raising(error), also=BaseException) == Raised(error)
    with ThreadPoolExecutor() as threads:
        assert threads.submit(catch, lambda: raising(error)).result() == Raised(error)


async def test_what_leaks_from_an_awaitable_is_data_and_as_a_part_of_a_run_it_has_a_name() -> None:
    assert isinstance(await catch_awaiting(raising_later(KeyboardInterrupt())), Raised)
    for error in (SystemExit(), GeneratorExit(), asyncio.CancelledError()):
        assert await catch_awaiting(raising_later(error)) == Raised(error)
        with pytest.raises(PieceFailed, match=f"user code ended the run: {type(error).__name__}"):
            await naming_leaks(raising_later(error), "the run")


async def test_a_cancellation_of_the_caller_passes_but_none_that_ended_in_the_code() -> None:
    waiting = asyncio.create_task(catch_awaiting(asyncio.sleep(60)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await catch_awaiting(asyncio.sleep(60))
