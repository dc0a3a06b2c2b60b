"""Environments that behave badly in one way each."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import time
from typing import Any, ClassVar

from rlhf.types import EnvironmentSpec, Message, Observation, Task

MORE = Observation(messages=(Message(role="user", content="more"),))
SPEC = EnvironmentSpec(name="behaving", description="For tests.")


class Behaving:
    """Says `more` for ever; what others do differently."""

    spec = SPEC
    release = threading.Event()
    closed = 0

    def reset(self, task: Task, *, seed: int) -> Observation:
        return MORE

    def step(self, action: Message) -> Any:
        return MORE

    def close(self) -> None:
        type(self).closed += 1


class Raises(Behaving):
    def step(self, action: Message) -> Observation:
        raise KeyError("state")


class Hangs(Behaving):
    release = threading.Event()

    def step(self, action: Message) -> Observation:
        self.release.wait(60)
        return MORE


class Meets(Behaving):
    """Its steps return when as many are under way as the barrier wants."""

    barrier = threading.Barrier(1)

    def step(self, action: Message) -> Observation:
        self.barrier.wait(20)
        return MORE


class Async:
    """Says `more` after `seconds`, with async methods, and notes the threads in which they run."""

    spec = SPEC
    threads: ClassVar[list[str]] = []

    def __init__(self, seconds: float = 0) -> None:
        self._seconds = seconds

    async def reset(self, task: Task, *, seed: int) -> Observation:
        self.threads.append(threading.current_thread().name)
        return MORE

    async def step(self, action: Message) -> Observation:
        self.threads.append(threading.current_thread().name)
        if action.content == "raise":
            raise KeyError("state")
        if action.content == "exit":
            sys.exit(3)
        if action.content == "generator":
            raise GeneratorExit
        if action.content == "interrupt":
            raise KeyboardInterrupt
        if action.content == "cancelled":
            task = asyncio.ensure_future(asyncio.sleep(9))
            task.cancel()
            await task
        await asyncio.sleep(self._seconds)
        return MORE

    async def close(self) -> None: ...


class TakesFromRow(Behaving):
    def reset(self, task: Task, *, seed: int) -> Observation:
        return Observation(messages=(Message(role="user", content=task.row["moves"].pop()),))


class Late(Behaving):
    def step(self, action: Message) -> Observation:
        time.sleep(0.4)
        return MORE


class CannotBeMade(Behaving):
    def __init__(self) -> None:
        raise OSError("no such device")


class Resetless:
    spec = SPEC

    def step(self, action: Message) -> Observation:
        return MORE

    def close(self) -> None: ...


class PassesOn:
    """Wraps another environment, as Gymnasium's wrappers do."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Behaving(), name)


class Refusing(Behaving):
    """The first, which tells the spec, can be made; no other."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        if self.made > 1:
            raise OSError("no licence left")


class Dies(Behaving):
    def step(self, action: Message) -> Observation:
        os._exit(7)


class CannotClose(Behaving):
    """Closes `after` times, of which the first is the one that told its spec."""

    made = 0

    def __init__(self, after: int = 0) -> None:
        type(self).made += 1
        self._fails = self.made > after

    def close(self) -> None:
        if self._fails:
            raise OSError("already gone")


class Lasting(Behaving):
    """Notes the threads in which it is made, played and closed."""

    threads: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.threads.append(threading.current_thread().name)

    def reset(self, task: Task, *, seed: int) -> Observation:
        self.threads.append(threading.current_thread().name)
        return MORE

    def step(self, action: Message) -> Observation:
        return self.reset(Task(id="", messages=()), seed=0)

    def close(self) -> None:
        self.threads.append(threading.current_thread().name)


TURNS = itertools.count()


def every_other(bad: str) -> Behaving:
    """One that behaves, then one of the class `bad`, in turns."""
    return globals()[bad]() if next(TURNS) % 2 else Behaving()
