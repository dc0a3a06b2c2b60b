"""Environments in threads of this process: whatever their code does is an answer or a named failure, in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from rlhf.env.hosting.here import HostedEnvironments
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import LocalEnvironment
from rlhf.types import Message
from tests.env.behaving import (
    MORE,
    SPEC,
    Behaving,
    CannotBeMade,
    CannotClose,
    Exits,
    Hangs,
    Late,
    Raises,
    RaisesTimeout,
    SaysNonsense,
    Threads,
)
from tests.fakes import TASK

ACTION = Message(role="assistant", content="go")


def hosted(
    factory: Callable[[], LocalEnvironment], *, turn: float = 5, start: float = 5, sessions: int = 8
) -> HostedEnvironments:
    return HostedEnvironments(
        factory, name="behaving", turn_timeout_seconds=turn, start_timeout_seconds=start, max_sessions=sessions
    )


async def failure_of_step(factory: Callable[[], LocalEnvironment], turn: float = 5) -> EnvironmentFailed:
    session = await hosted(factory, turn=turn).open("s")
    await session.reset(TASK, seed=0)
    with pytest.raises(EnvironmentFailed) as raised:
        await session.step(ACTION)
    await session.close()
    return raised.value


async def test_an_environment_is_played_and_closed_once() -> None:
    before = Behaving.closed
    environments = hosted(Behaving)
    await environments.start()
    assert environments.spec == SPEC
    session = await environments.open("s")
    assert await session.reset(TASK, seed=0) == MORE
    assert await session.step(ACTION) == MORE
    await session.close()
    assert Behaving.closed == before + 2


@pytest.mark.parametrize(
    ("factory", "kind", "detail"),
    [
        (Raises, "raised", "KeyError: 'state'"),
        (RaisesTimeout, "raised", "TimeoutError: of its own"),
        (Exits, "raised", "SystemExit: 3"),
        (SaysNonsense, "protocol", "it answered {'observation': 'more'}, not a Observation"),
    ],
)
async def test_what_an_environment_does_wrong_has_a_kind_and_its_words(
    factory: type[Behaving], kind: str, detail: str
) -> None:
    error = await failure_of_step(factory)
    assert (error.kind, error.detail) == (kind, detail)


async def test_an_answer_after_its_deadline_is_a_failure_and_is_thrown_away() -> None:
    session = await hosted(Late, turn=0.1).open("s")
    with pytest.raises(EnvironmentFailed, match=r"timeout: session s did not answer within 0\.1 s"):
        await session.step(ACTION)
    await session.close()


async def test_an_environment_that_hangs_holds_up_nobody_else_and_keeps_its_place() -> None:
    environments = hosted(Hangs, turn=0.2, start=0.2, sessions=2)
    hanging, other = await environments.open("hangs"), await environments.open("other")
    with pytest.raises(EnvironmentFailed, match="timeout"):
        await hanging.step(ACTION)
    assert await other.reset(TASK, seed=0) == MORE
    with pytest.raises(EnvironmentFailed, match="refused: session third got no place within"):
        await environments.open("third")
    closing = asyncio.create_task(hanging.close())
    Hangs.release.set()
    await closing
    again = await environments.open("fourth")
    await asyncio.gather(again.close(), other.close())


async def test_an_environment_that_cannot_be_made_gives_its_place_back() -> None:
    environments = hosted(CannotBeMade, sessions=1)
    for _ in range(3):
        with pytest.raises(EnvironmentFailed, match="raised: OSError: no such device"):
            await environments.open("s")


async def test_closing_never_raises() -> None:
    session = await hosted(CannotClose).open("s")
    await session.close()


async def test_every_session_has_a_thread_of_its_own_which_ends_with_it() -> None:
    environments = hosted(Threads)
    sessions = await asyncio.gather(*(environments.open(f"s{n}") for n in range(4)))
    answers = await asyncio.gather(*(session.step(ACTION) for session in sessions))
    assert {answer.messages[0].content for answer in answers} == {f"environment s{n}" for n in range(4)}
    await asyncio.gather(*(session.close() for session in sessions))
    for thread in threading.enumerate():
        if thread.name in {f"environment s{n}" for n in range(4)}:
            thread.join(5)
            assert not thread.is_alive()
