"""The thread that owns an engine, with an engine that counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from rlhf.engines.vllm.thread import EngineThread
from rlhf.errors import DeadlinePassed, EngineBroken
from rlhf.types import Completion
from tests.pace import scaled


@dataclass
class CountingEngine:
    """Steps `left` times; raises at the last step when it is `faulty`."""

    left: int = 0
    faulty: bool = False
    steps: int = 0
    closed: bool = False
    threads: set[str] = field(default_factory=set)

    @property
    def busy(self) -> bool:
        return self.left > 0

    def step(self) -> dict[str, Completion]:
        self.threads.add(threading.current_thread().name)
        self.steps += 1
        if self.faulty and self.left == 1:
            raise ArithmeticError("the model fell over")
        self.left -= 1
        return []

    def close(self) -> None:
        self.closed = True


@dataclass
class Owned:
    engine: CountingEngine
    thread: EngineThread
    failures: list[BaseException]
    delivered: threading.Semaphore


@pytest.fixture
def owned() -> Iterator[Owned]:
    engine, failures, delivered = CountingEngine(), [], threading.Semaphore(0)
    thread: EngineThread = EngineThread(
        "engine-0",
        deliver=lambda _: delivered.release(),
        fail=lambda error: (failures.append(error), delivered.release()),
    )
    thread.start(lambda: engine, timeout_seconds=5)
    yield Owned(engine, thread, failures, delivered)
    thread.stop(timeout_seconds=5)


def give_work(owned: Owned, steps: int) -> None:
    def give(engine: CountingEngine) -> None:
        engine.left = steps

    owned.thread.run(give, awaited="work", timeout_seconds=5)
    for _ in range(steps):
        assert owned.delivered.acquire(timeout=scaled(5))


def test_it_steps_while_there_is_work_and_only_on_its_own_thread(owned: Owned) -> None:
    give_work(owned, 3)
    give_work(owned, 2)
    assert owned.engine.steps == 5
    assert owned.engine.threads == {"engine-0"}


def test_what_a_command_raises_reaches_its_caller_and_harms_nothing_else(owned: Owned) -> None:
    with pytest.raises(ZeroDivisionError):
        owned.thread.run(lambda _: 1 / 0, awaited="sum", timeout_seconds=5)
    assert owned.thread.run(lambda _: 2, awaited="sum", timeout_seconds=5) == 2


def test_a_command_that_takes_too_long_is_named(owned: Owned) -> None:
    let_go = threading.Event()
    with pytest.raises(DeadlinePassed, match=r"engine-0\.receive did not answer within 0\.05 s"):
        owned.thread.run(lambda _: let_go.wait(scaled(5)), awaited="receive", timeout_seconds=0.05)
    let_go.set()


def test_a_step_that_raises_is_told_once_and_ends_the_stepping_but_not_the_commands(owned: Owned) -> None:
    owned.engine.faulty = True
    give_work(owned, 3)
    assert [str(error) for error in owned.failures] == ["the model fell over"]
    assert owned.thread.run(lambda engine: engine.steps, awaited="steps", timeout_seconds=5) == 3


def test_an_engine_that_cannot_be_built_says_why_and_leaves_no_thread() -> None:
    thread: EngineThread = EngineThread("engine-1", deliver=print, fail=print)

    def refuse() -> CountingEngine:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        thread.start(refuse, timeout_seconds=5)
    thread.stop(timeout_seconds=5)
    with pytest.raises(EngineBroken, match="engine-1 is in an unknown state"):
        thread.run(lambda _: None, awaited="anything", timeout_seconds=5)


def test_stopping_closes_the_engine(owned: Owned) -> None:
    owned.thread.stop(timeout_seconds=5)
    assert owned.engine.closed
