"""Environments hosted by this process: whatever their code does is an answer or a named failure, in time."""

from __future__ import annotations

import asyncio
import threading

import psutil
import pytest

from rlhf.env.config import Kind
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.types import Message
from tests.env.behaving import MORE, SPEC, Behaving, CannotClose, Hangs, Lasting, Refusing
from tests.env.hosted import hosted
from tests.fakes import TASK
from tests.pace import scaled

ACTION = Message(role="assistant", content="go")
KINDS: tuple[Kind, ...] = ("thread", "process", "inline")


async def failure_of_step(name: str, isolation: Kind, turn: float = 5) -> EnvironmentFailed:
    async with hosted(name, isolation=isolation, turn=turn) as environments:
        session = await environments.open("s")
        await session.reset(TASK, seed=0)
        with pytest.raises(EnvironmentFailed) as raised:
            await session.step(ACTION)
        await session.close()
        return raised.value


@pytest.mark.parametrize("isolation", KINDS)
async def test_an_environment_is_played(isolation: Kind) -> None:
    async with hosted("Behaving", isolation=isolation) as environments:
        assert environments.spec == SPEC
        session = await environments.open("s")
        assert await session.reset(TASK, seed=0) == MORE
        assert await session.step(ACTION) == MORE
        await session.close()


@pytest.mark.parametrize("isolation", KINDS)
async def test_a_reward_of_numpy_is_a_plain_number(isolation: Kind) -> None:
    async with hosted("PaysInNumpy", isolation=isolation) as environments:
        session = await environments.open("s")
        await session.reset(TASK, seed=0)
        said = await session.step(ACTION)
        assert (said.reward, type(said.reward)) == (0.5, float)
        await session.close()


@pytest.mark.parametrize("isolation", ["thread", "inline"])
async def test_an_environment_is_closed_once(isolation: Kind) -> None:
    before = Behaving.closed
    async with hosted("Behaving", isolation=isolation) as environments:
        assert Behaving.closed == before + 1  # the one that told its spec
        session = await environments.open("s")
        await session.close()
        await session.close()
        await until(lambda: Behaving.closed == before + 2)


@pytest.mark.parametrize("isolation", KINDS)
@pytest.mark.parametrize(
    ("name", "kind", "detail"),
    [
        ("Raises", "raised", "step: KeyError: 'state'"),
        ("RaisesTimeout", "raised", "step: TimeoutError: of its own"),
        ("Exits", "raised", "step: SystemExit: 3"),
        ("PaysInWords", "protocol", "its reward is '1', which is no number"),
        ("SaysNonsense", "protocol", "it returned {'observation': 'more'}, not an Observation"),
    ],
)
async def test_what_an_environment_does_wrong_has_a_kind_and_its_words(
    name: str, kind: str, detail: str, isolation: Kind
) -> None:
    error = await failure_of_step(name, isolation)
    assert (error.kind, error.detail) == (kind, detail)


@pytest.mark.parametrize(
    ("isolation", "words"), [("thread", "step did not return within"), ("process", "step was killed after")]
)
async def test_an_answer_after_its_deadline_is_a_failure_and_is_thrown_away(isolation: Kind, words: str) -> None:
    error = await failure_of_step("Late", isolation, turn=0.2)
    assert (error.kind, error.detail) == ("timeout", f"{words} 0.2 s")


async def test_an_inline_call_that_comes_back_late_has_failed_too() -> None:
    error = await failure_of_step("Late", "inline", turn=0.2)
    assert error.kind == "timeout"
    assert error.detail.startswith("step took 0.")


async def test_an_environment_that_ends_its_process_is_named_and_the_others_go_on() -> None:
    async with hosted("Dies", isolation="process") as environments:
        doomed, other = await environments.open("doomed"), await environments.open("other")
        with pytest.raises(EnvironmentFailed, match="lost: its process ended during step"):
            await doomed.step(ACTION)
        assert await other.reset(TASK, seed=0) == MORE
        await asyncio.gather(doomed.close(), other.close())


async def test_when_the_process_that_starts_environments_is_killed_there_is_another() -> None:
    before = {child.pid for child in psutil.Process().children()}
    async with hosted("Behaving", isolation="process") as environments:
        [forker] = [child for child in psutil.Process().children() if child.pid not in before]
        session = await environments.open("s")
        forker.kill()
        forker.wait(scaled(5))
        with pytest.raises(EnvironmentFailed, match="lost"):
            await session.step(ACTION)
        again = await environments.open("t")
        assert await again.reset(TASK, seed=0) == MORE


async def test_an_environment_that_hangs_holds_up_nobody_else_and_its_place_is_free() -> None:
    Hangs.release.clear()
    async with hosted("Hangs", turn=0.2, place=0.2, sessions=2) as environments:
        hanging, other = await environments.open("hangs"), await environments.open("other")
        with pytest.raises(EnvironmentFailed, match="timeout"):
            await hanging.step(ACTION)
        assert await other.reset(TASK, seed=0) == MORE
        with pytest.raises(EnvironmentFailed, match="refused: session third got no place within"):
            await environments.open("third")
        await hanging.close()
        again = await environments.open("fourth")
        assert await again.reset(TASK, seed=0) == MORE
        Hangs.release.set()


async def test_threads_that_are_lost_are_no_more_than_there_may_be_sessions() -> None:
    Hangs.release.clear()
    async with hosted("Hangs", turn=0.1, sessions=2) as environments:
        for _ in range(2):
            session = await environments.open("hangs")
            with pytest.raises(EnvironmentFailed, match="timeout"):
                await session.step(ACTION)
            await session.close()
        with pytest.raises(EnvironmentFailed, match="refused: 2 calls never came back; isolation process can end them"):
            await environments.open("next")
        Hangs.release.set()


@pytest.mark.parametrize("isolation", KINDS)
async def test_an_environment_that_cannot_be_made_is_refused_at_the_start(isolation: Kind) -> None:
    with pytest.raises(ConfigError, match="cannot be made with its arguments: OSError: no such device"):
        async with hosted("CannotBeMade", isolation=isolation):
            pass


async def test_a_session_that_cannot_be_made_gives_its_place_back() -> None:
    Refusing.made = 0
    async with hosted("Refusing", sessions=1) as environments:
        for _ in range(3):
            with pytest.raises(EnvironmentFailed, match="raised: open: OSError: no licence left"):
                await environments.open("s")


@pytest.mark.parametrize("isolation", KINDS)
async def test_closing_never_raises(isolation: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CannotClose, "made", 0)
    async with hosted("CannotClose", isolation=isolation, arguments={"after": 1}) as environments:
        session = await environments.open("s")
        await session.close()
        await (await environments.open("again")).close()


async def test_neither_constructor_nor_method_runs_on_the_event_loop() -> None:
    Lasting.threads.clear()
    async with hosted("Lasting") as environments:
        session = await environments.open("s")
        await session.reset(TASK, seed=0)
        await session.step(ACTION)
        await session.close()
        await until(lambda: len(Lasting.threads) == 6)
    assert threading.current_thread().name not in Lasting.threads


async def until(happened: object) -> None:
    """Wait for what comes in a thread."""
    async with asyncio.timeout(5):
        while not happened():  # type: ignore[operator]
            await asyncio.sleep(0.01)
