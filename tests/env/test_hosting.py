"""Environments hosted by this process: whatever their code does is an answer or a named failure, in time."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import psutil
import pytest

from rlhf.env.config import IsolationKind
from rlhf.env.hosting.isolation import check_methods
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.types import Message
from tests.env.behaving import MORE, SPEC, Async, Behaving, CannotClose, Hangs, Lasting, Meets, PassesOn, Refusing
from tests.env.hosted import hosted
from tests.env.serving import HERE
from tests.fakes import TASK
from tests.pace import scaled

pytestmark = pytest.mark.waits

ACTION = Message(role="assistant", content="go")
KINDS: tuple[IsolationKind, ...] = ("thread", "process")


async def failure_of_step(word: str, isolation: IsolationKind, turn: float = 5) -> EnvironmentFailed:
    async with hosted("Moody", module=HERE, isolation=isolation, turn=turn) as environments:
        session = await environments.open("s")
        await session.reset(TASK, seed=0)
        with pytest.raises(EnvironmentFailed) as raised:
            await session.step(Message(role="assistant", content=word))
        await session.close()
        return raised.value


@pytest.mark.parametrize("isolation", KINDS)
@pytest.mark.parametrize("name", ["Behaving", "Async"])
async def test_an_environment_is_played(name: str, isolation: IsolationKind) -> None:
    async with hosted(name, isolation=isolation) as environments:
        assert environments.spec == SPEC
        session = await environments.open("s")
        assert await session.reset(TASK, seed=0) == MORE
        assert await session.step(ACTION) == MORE
        await session.close()


async def test_a_session_has_a_row_of_its_own() -> None:
    task = replace(TASK, row={"moves": ["left", "right"]})
    async with hosted("TakesFromRow") as environments:
        for _ in range(2):
            session = await environments.open("s")
            assert (await session.reset(task, seed=0)).messages[0].content == "right"
            await session.close()


async def test_an_environment_is_closed_once() -> None:
    before = Behaving.closed
    async with hosted("Behaving") as environments:
        assert Behaving.closed == before + 1  # the one that told its spec
        session = await environments.open("s")
        await session.close()
        await session.close()
        await until(lambda: Behaving.closed == before + 2)


@pytest.mark.parametrize("isolation", KINDS)
@pytest.mark.parametrize(
    ("word", "kind", "detail"),
    [
        ("raise", "raised", "step: ValueError: told to"),
        ("give up", "raised", "step: TimeoutError: of its own"),
        ("sys.exit", "raised", "step: SystemExit: 3"),
        ("nan", "protocol", "its reward is nan, not a number"),
        ("half", "protocol", r"its text has a lone surrogate: 'half a character: \\ud83d'"),
        ("nothing", "protocol", "it returned None, not an Observation"),
        ("huge", "protocol", f"its reward is 1{'0' * 39}, not a number"),
        ("bare", "protocol", "its messages are 'well', not a tuple of Message"),
        ("dict", "protocol", "a message is {'role': 'user'}, not a Message with text"),
        ("number", "protocol", f"a message is {Message(role='user', content=5)!r:.80}, not a Message with text"),
        ("words", "protocol", "terminated or truncated is 'false', not true or false"),
        ("uninformed", "protocol", "its info is None, not a mapping"),
        ("unsayable", "raised", "step: Unsayable: its text cannot be made (ZeroDivisionError)"),
        ("unreadable", "raised", "step: Unsayable: its text cannot be made (ZeroDivisionError)"),
    ],
)
async def test_what_an_environment_does_wrong_has_a_kind_and_its_words(
    word: str, kind: str, detail: str, isolation: IsolationKind
) -> None:
    error = await failure_of_step(word, isolation)
    what, _, place = error.detail.partition(" (at ")
    assert (error.kind, what) == (kind, detail)
    assert place.startswith("tests/env/environments.py:") == (kind == "raised")


UNSENDABLE = [
    ("bytes", "data that JSON cannot represent: Error serializing to JSON: invalid utf-8"),
    ("cycle", "data that JSON cannot represent: it contains itself"),
    ("long", "a message of 69,206,287 bytes exceeds the limit of 67,108,864"),
]


@pytest.mark.parametrize(("word", "detail"), UNSENDABLE)
async def test_an_observation_that_cannot_leave_its_process_is_named(word: str, detail: str) -> None:
    error = await failure_of_step(word, "process", turn=scaled(30))
    assert error.kind == "protocol"
    assert error.detail.startswith(f"step: {detail}")


@pytest.mark.parametrize(
    ("isolation", "words"), [("thread", "step did not return within"), ("process", "step was killed after")]
)
async def test_an_answer_after_its_deadline_is_a_failure(isolation: IsolationKind, words: str) -> None:
    error = await failure_of_step("sleep 0.4", isolation, turn=0.2)
    assert (error.kind, error.detail) == ("timeout", f"{words} 0.2 s")


async def test_async_methods_run_on_the_event_loop_and_are_cancelled_at_their_deadline() -> None:
    Async.threads.clear()
    async with hosted("Async", turn=0.2, arguments={"seconds": 60}) as environments:
        session = await environments.open("s")
        await session.reset(TASK, seed=0)
        with pytest.raises(EnvironmentFailed, match=r"timeout: step did not return within 0\.2 s"):
            await session.step(ACTION)
        await session.close()
    assert set(Async.threads) == {threading.current_thread().name}


RAISED = {
    "raise": "KeyError: 'state'", "exit": "SystemExit: 3", "cancelled": "CancelledError", "generator": "GeneratorExit",
    "interrupt": "KeyboardInterrupt",
}  # fmt: skip


@pytest.mark.parametrize("isolation", KINDS)
async def test_what_an_async_method_raises_is_named(isolation: IsolationKind) -> None:
    async with hosted("Async", isolation=isolation) as environments:
        for word, raised in RAISED.items():
            session = await environments.open("s")
            await session.reset(TASK, seed=0)
            with pytest.raises(EnvironmentFailed, match=f"raised: step: {raised}"):
                await session.step(Message(role="assistant", content=word))
            await session.close()


async def test_a_call_that_its_caller_leaves_is_closed_when_it_returns() -> None:
    Hangs.release.clear()
    before = Hangs.closed
    async with hosted("Hangs") as environments:
        session = await environments.open("s")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.step(ACTION), 0.05)
        assert Hangs.closed == before + 1  # the one that told its spec
        Hangs.release.set()
        await until(lambda: Hangs.closed == before + 2)


async def test_sessions_do_not_wait_for_the_slow_steps_of_others() -> None:
    Meets.barrier = threading.Barrier(50)
    async with hosted("Meets", sessions=50, turn=20) as environments:
        sessions = [await environments.open("s") for _ in range(50)]
        assert await asyncio.gather(*(session.step(ACTION) for session in sessions)) == [MORE] * 50
        await asyncio.gather(*(session.close() for session in sessions))


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


async def test_a_process_that_a_signal_has_stopped_is_lost_and_replaced() -> None:
    before = {child.pid for child in psutil.Process().children()}
    async with hosted("Behaving", isolation="process", turn=1.0) as environments:
        [forker] = [child for child in psutil.Process().children() if child.pid not in before]
        session = await environments.open("s")
        [fork] = forker.children()
        fork.suspend()
        with pytest.raises(EnvironmentFailed, match="lost: its process was stopped during step"):
            await session.step(ACTION)
        forker.suspend()
        while forker.status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        again = await environments.open("t")
        assert await again.reset(TASK, seed=0) == MORE
        forker.wait(scaled(5))


async def test_an_environment_that_hangs_holds_up_nobody_else_and_its_place_is_free() -> None:
    Hangs.release.clear()
    async with hosted("Hangs", turn=0.2, place=0.2, sessions=2) as environments:
        hanging, other = await environments.open("hangs"), await environments.open("other")
        with pytest.raises(EnvironmentFailed, match="timeout"):
            await hanging.step(ACTION)
        assert await other.reset(TASK, seed=0) == MORE
        with pytest.raises(EnvironmentFailed, match="refused: no place was free for session third within"):
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
        with pytest.raises(
            EnvironmentFailed, match="refused: 2 calls never returned; with isolation: process they can be killed"
        ):
            await environments.open("next")
        Hangs.release.set()


@pytest.mark.parametrize("isolation", KINDS)
async def test_an_environment_that_cannot_be_made_is_refused_at_the_start(isolation: IsolationKind) -> None:
    with pytest.raises(ConfigError, match="cannot be made with its arguments: OSError: no such device"):
        async with hosted("CannotBeMade", isolation=isolation):
            pass


@pytest.mark.parametrize("isolation", KINDS)
async def test_a_class_without_a_method_is_refused_at_the_start(isolation: IsolationKind) -> None:
    with pytest.raises(ConfigError, match="Resetless, which has no method reset"):
        async with hosted("Resetless", isolation=isolation):
            pass
    check_methods(PassesOn, "m:PassesOn", "the environment")


@pytest.mark.parametrize("isolation", KINDS)
async def test_a_tool_without_a_valid_schema_is_refused_at_the_start(isolation: IsolationKind) -> None:
    parameters = {"type": "object", "properties": {"at": {"$ref": "#/$defs/place"}}}
    with pytest.raises(ConfigError, match=r"the schema of tool 'look' refers to '#/\$defs/place' but does not"):
        async with hosted("Tooled", module=HERE, isolation=isolation, arguments={"parameters": parameters}):
            pass
    parameters["$defs"] = {"place": {"type": "string"}}
    async with hosted("Tooled", module=HERE, isolation=isolation, arguments={"parameters": parameters}) as environments:
        assert environments.spec.tools[0].parameters == parameters


async def test_a_session_that_cannot_be_made_gives_its_place_back() -> None:
    Refusing.made = 0
    async with hosted("Refusing", sessions=1) as environments:
        for _ in range(3):
            with pytest.raises(EnvironmentFailed, match="raised: open: OSError: no licence left"):
                await environments.open("s")


@pytest.mark.parametrize("isolation", KINDS)
async def test_closing_never_raises(isolation: IsolationKind, monkeypatch: pytest.MonkeyPatch) -> None:
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
