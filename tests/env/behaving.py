"""Environments that behave badly in one way each."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

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


class RaisesTimeout(Behaving):
    def step(self, action: Message) -> Observation:
        raise TimeoutError("of its own")


class Exits(Behaving):
    def step(self, action: Message) -> Observation:
        sys.exit(3)


class Hangs(Behaving):
    release = threading.Event()

    def step(self, action: Message) -> Observation:
        self.release.wait(60)
        return MORE


class Late(Behaving):
    def step(self, action: Message) -> Observation:
        time.sleep(0.4)
        return MORE


class SaysNonsense(Behaving):
    def step(self, action: Message) -> Any:
        return {"observation": "more"}


class CannotBeMade(Behaving):
    def __init__(self) -> None:
        raise OSError("no such device")


class CannotClose(Behaving):
    def close(self) -> None:
        raise OSError("already gone")


class Threads(Behaving):
    """Says which thread it is in."""

    def step(self, action: Message) -> Observation:
        return Observation(messages=(Message(role="user", content=threading.current_thread().name),))
