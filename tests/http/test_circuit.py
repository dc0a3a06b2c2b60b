"""The circuit and the limiter, on a clock of their own."""

from __future__ import annotations

import asyncio

import pytest

from rlhf.errors import HttpFailed
from rlhf.http.adaptive_limiter import AdaptiveLimiter
from rlhf.http.circuit import Circuit
from tests.pace import scaled


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> Circuit:
    return Circuit("http://judge", failure_threshold=2, reset_seconds=30, clock=clock)


def outcome(circuit: Circuit, kind: str | None) -> str | None:
    """What became of a call that ends as `kind`; None is a success."""
    try:
        with circuit.guard():
            if kind:
                raise HttpFailed("http://judge", kind, "detail")
    except HttpFailed as failure:
        return failure.kind
    return None


def test_a_success_in_between_keeps_the_circuit_closed(circuit: Circuit) -> None:
    assert [outcome(circuit, kind) for kind in ("lost", None, "lost", None, "lost")][-1] == "lost"
    assert outcome(circuit, None) is None


def test_a_request_of_ours_that_is_wrong_says_nothing_about_the_server(circuit: Circuit) -> None:
    assert [outcome(circuit, "rejected") for _ in range(5)] == ["rejected"] * 5


def test_after_a_while_one_call_tries_the_server_and_its_success_closes_the_circuit(
    circuit: Circuit, clock: Clock
) -> None:
    assert [outcome(circuit, "timeout") for _ in range(3)] == ["timeout", "timeout", "open"]
    clock.now = 31
    with circuit.guard():
        assert outcome(circuit, None) == "open", "one at a time"
    assert outcome(circuit, None) is None


def test_a_server_that_is_still_broken_is_left_alone_again(circuit: Circuit, clock: Clock) -> None:
    for _ in range(2):
        outcome(circuit, "server")
    clock.now = 31
    assert outcome(circuit, "server") == "server"
    assert outcome(circuit, None) == "open"
    clock.now = 62
    assert outcome(circuit, None) is None


def test_a_trial_that_was_given_up_lets_another_one_try(circuit: Circuit, clock: Clock) -> None:
    for _ in range(2):
        outcome(circuit, "server")
    clock.now = 31
    with pytest.raises(KeyboardInterrupt), circuit.guard():
        raise KeyboardInterrupt
    assert outcome(circuit, None) is None


def test_the_limit_halves_when_the_server_is_busy_and_grows_back_slowly() -> None:
    limiter = AdaptiveLimiter(8)
    for _ in range(2):
        limiter.busy(limiter.halvings)
    assert limiter.limit == 2
    for _ in range(2 + 3):
        limiter.answered()
    assert limiter.limit == 4
    for _ in range(100):
        limiter.answered()
    assert limiter.limit == 8
    for _ in range(9):
        limiter.busy(limiter.halvings)
    assert limiter.limit == 1


def test_calls_that_were_turned_away_together_halve_the_limit_once() -> None:
    limiter = AdaptiveLimiter(8)
    together = limiter.halvings
    for _ in range(5):
        limiter.busy(together)
    assert limiter.limit == 4


def test_a_stated_capacity_is_a_ceiling_for_good() -> None:
    limiter = AdaptiveLimiter(8)
    limiter.narrow(3)
    for _ in range(100):
        limiter.answered()
    assert limiter.limit == limiter.most == 3
    limiter.narrow(5)
    assert limiter.most == 3


async def test_whoever_gives_up_waiting_leaves_no_gap_and_keeps_no_place() -> None:
    limiter = AdaptiveLimiter(1)
    order: list[str] = []

    async def visit(name: str) -> None:
        async with limiter:
            order.append(name)
            await asyncio.sleep(0.01)

    visits = [asyncio.create_task(visit(name)) for name in "abcd"]
    await asyncio.sleep(0)
    visits[1].cancel()
    await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*visits, return_exceptions=True), scaled(5))
    assert order == ["a", "c", "d"]


async def test_a_place_given_to_one_that_is_gone_goes_to_the_next() -> None:
    limiter = AdaptiveLimiter(1)
    await limiter.__aenter__()
    leaving, staying = (asyncio.create_task(limiter.__aenter__()) for _ in range(2))
    await asyncio.sleep(0)
    await limiter.__aexit__(None, None, None)
    leaving.cancel()
    await asyncio.wait_for(staying, scaled(5))
    assert leaving.cancelled()
