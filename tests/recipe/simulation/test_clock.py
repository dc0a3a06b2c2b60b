"""Simulated time: it jumps to the next timer, and work shares engines and cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from math import inf
from typing import Any, TypeVar

import pytest

from rlhf.errors import UserError
from rlhf.recipe.simulation.clock import Cores, Flow, SimulatedLoop

T = TypeVar("T")


def simulated(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_year_passes_at_once_and_in_order() -> None:
    async def naps() -> list[tuple[str, float]]:
        seen = []

        async def nap(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, now()))

        await asyncio.gather(nap("year", 365 * 86400), nap("day", 86400), nap("second", 1))
        return seen

    began = time.monotonic()
    names, ends = zip(*simulated(naps()), strict=True)
    assert names == ("second", "day", "year")
    assert ends == pytest.approx((1, 86400, 365 * 86400))
    assert time.monotonic() - began < 3600


def test_a_wait_for_nothing_is_an_error() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(UserError, match="waits for what never comes"):
        simulated(wait())


def test_pieces_end_when_the_flow_has_done_their_units() -> None:
    async def work() -> list[float]:
        flow, ends = Flow(Cores(inf), 1), []

        async def piece(units: float, after: float = 0) -> None:
            await asyncio.sleep(after)
            await flow.piece(units)
            ends.append(now())

        async def change() -> None:
            flow.run(True, seconds=2)
            await asyncio.sleep(4)  # 2 units
            flow.run(False)
            await asyncio.sleep(10)
            flow.run(True, seconds=1)

        await asyncio.gather(piece(1), piece(3), piece(1, after=14), change())
        return ends

    assert simulated(work()) == pytest.approx([2, 15, 15])


def test_what_is_owed_is_worked_off_first() -> None:
    async def work() -> list[float]:
        flow, ends = Flow(Cores(inf), 1), []
        flow.run(True)
        flow.owe(10)
        pieces = [asyncio.ensure_future(flow.piece(units)) for units in (1, 3)]
        for piece in pieces:
            await piece
            ends.append(now())
            flow.owe(5)
        return ends

    assert simulated(work()) == pytest.approx([11, 18])


def test_workers_slow_each_other_down_where_cores_are_too_few() -> None:
    async def work() -> list[float]:
        cores, ends = Cores(2), []

        async def worker(threads: float, seconds: float) -> None:
            flow = Flow(cores, threads)
            flow.run(True)
            await flow.piece(seconds)
            flow.run(False)
            ends.append(now())

        await asyncio.gather(worker(2, 1), worker(2, 3))
        return ends

    assert simulated(work()) == pytest.approx([2, 4])
