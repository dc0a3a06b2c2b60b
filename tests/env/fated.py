"""An environment that counts its steps, and breaks at some of them in a way that its task and the action decide."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

from rlhf.types import EnvironmentSpec, Message, Observation, Task

STEPS = 3
RETURN = sum(range(1, STEPS + 1))
"""The return of a whole episode: a step pays its number, so a step that runs twice shows."""
BROKEN_TASKS = 37
"""Of so many tasks one has a reset that raises: its whole group is lost."""
OUTCOMES = {"raise": "raised", "hang": "timeout", "late": "timeout", "exit": "lost"}
"""The documented kind of failure of everything that a step may do wrong."""


class Fated:
    """`STEPS` steps. A share `rate` of them meets one of `fates` instead of answering; `late_seconds` is more than the
    deadline. Each fate is written to the file `log` first."""

    spec = EnvironmentSpec(name="fated", description="Counts its steps.")

    def __init__(self, log: str, fates: list[str], rate: float = 0.01, late_seconds: float = 1.0) -> None:
        self._log, self._fates, self._rate, self._late_seconds = log, fates, rate, late_seconds
        self._steps = 0

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._task = task.id
        if self._fates and is_broken(task.id):
            self._note("reset")
            raise ValueError("no such task")
        return Observation(messages=(Message(role="user", content="go"),))

    def step(self, action: Message) -> Observation:
        self._steps += 1
        draw = random.Random(f"{self._task} {self._steps} {action.content}").random()
        if draw < self._rate and self._fates:
            self._meet(self._fates[int(draw / self._rate * len(self._fates))])
        said = (Message(role="user", content="more"),)
        return Observation(messages=said, reward=float(self._steps), terminated=self._steps == STEPS)

    def close(self) -> None: ...

    def _meet(self, fate: str) -> None:
        self._note(fate)
        if fate == "raise":
            raise KeyError("state")
        if fate == "hang":
            time.sleep(3600)
        if fate == "late":
            time.sleep(self._late_seconds)
        if fate == "exit":
            os._exit(7)

    def _note(self, fate: str) -> None:
        with open(self._log, "a") as log:  # one short write: whole, whoever else writes
            log.write(f"{fate}\n")


def is_broken(task: str) -> bool:
    return int(task) % BROKEN_TASKS == BROKEN_TASKS - 1


def met(log: Path) -> Counter[str]:
    """How often each fate was met."""
    return Counter(log.read_text().split())
