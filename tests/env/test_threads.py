"""Threads for calls that may hang."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from rlhf.env.hosting.threads import Threads, TooManyHung
from rlhf.errors import DeadlinePassed
from tests.pace import scaled


def nothing() -> None: ...


async def test_a_call_returns_and_raises_what_its_work_does():
    threads = Threads("t", limit=4)
    assert await threads.run("work", lambda: 7, 5, nothing) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run("work", lambda: 1 // 0, 5, nothing)
    threads.stop()


async def test_a_call_that_hangs_is_given_up_and_others_go_on():
    threads, release, late = Threads("t", limit=1), threading.Event(), threading.Event()
    with pytest.raises(DeadlinePassed, match=r"hanging did not answer within 0\.05 s"):
        await threads.run("hanging", release.wait, 0.05, late.set)
    assert threads.hung == 1
    assert await threads.run("work", lambda: 7, 5, nothing) == 7
    release.set()
    assert await asyncio.to_thread(late.wait, 5)
    while threads.hung:
        await asyncio.sleep(0.01)
    threads.stop()


async def test_the_time_that_a_call_waits_for_a_thread_is_not_of_its_deadline():
    threads = Threads("t", limit=1)
    slow = [threads.run("slow", lambda: time.sleep(0.2), 0.5, nothing) for _ in range(5)]
    await asyncio.gather(*slow)
    threads.stop()


async def test_calls_that_wait_for_others_get_threads_of_their_own():
    threads, barrier = Threads("t", limit=20), threading.Barrier(20)
    await asyncio.gather(*(threads.run("meet", lambda: barrier.wait(scaled(20)), 30, nothing) for _ in range(20)))
    threads.stop()


async def test_when_too_many_hang_the_next_is_refused():
    threads, release = Threads("t", limit=2, hung_limit=2), threading.Event()
    for _ in range(2):
        with pytest.raises(DeadlinePassed):
            await threads.run("hanging", release.wait, 0.02, nothing)
    with pytest.raises(TooManyHung):
        await threads.run("work", nothing, 5, nothing)
    release.set()
    threads.stop()


async def test_a_caller_that_leaves_gives_the_call_up():
    threads, release, late = Threads("t", limit=1), threading.Event(), threading.Event()
    call = asyncio.create_task(threads.run("work", release.wait, 30, late.set))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    release.set()
    assert await asyncio.to_thread(late.wait, 5)
    threads.stop()
