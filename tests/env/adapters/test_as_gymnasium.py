"""Environments of this system are Gymnasium's too, by its own checker."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest

from rlhf.env.adapters.blocking import BlockingEnvironment
from rlhf.env.adapters.gymnasium import GymnasiumEnvironment
from rlhf.env.adapters.textarena import TextArenaEnvironment
from rlhf.errors import ConfigError, DeadlinePassed
from rlhf.protocols import LocalEnvironment
from rlhf.types import EnvironmentSpec, Message, Observation, Task


class HostedHere:
    """`Environments` over a local one, whose steps hang when it is told so."""

    def __init__(self, create: Callable[[], LocalEnvironment], hangs: bool = False) -> None:
        self._create, self._hangs = create, hangs
        self.spec = create().spec
        self.opened = self.open_now = 0

    async def open(self, session: str) -> Session:
        self.opened += 1
        self.open_now += 1
        return Session(self, self._create(), self._hangs)


class Session:
    def __init__(self, host: HostedHere, environment: LocalEnvironment, hangs: bool) -> None:
        self._host, self._environment, self._hangs = host, environment, hangs

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return self._environment.reset(task, seed=seed)

    async def step(self, action: Message) -> Observation:
        if self._hangs:
            await asyncio.Event().wait()
        return self._environment.step(action)

    async def close(self) -> None:
        self._host.open_now -= 1
        self._environment.close()


pytestmark = pytest.mark.ecosystem

TASKS = [Task(id=str(index), messages=(Message(role="user", content=f"task {index}"),)) for index in range(3)]


def gymnasium_env(create: Callable[[], LocalEnvironment], tasks: Sequence[Task]) -> Any:
    """Import it in the tests only: this file is collected where Gymnasium is not installed, too."""
    return importlib.import_module("rlhf.env.adapters.as_gymnasium").GymnasiumEnv(create, tasks)


def lake() -> GymnasiumEnvironment:
    return GymnasiumEnvironment("FrozenLake-v1", options={"is_slippery": False})


def checked(env: object) -> None:
    checker = importlib.import_module("gymnasium.utils.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        warnings.filterwarnings("ignore", message=".*is not within the registry.*|.*no spec.*|.*not in the registry.*")
        checker.check_env(env)


def test_check_env_passes_on_an_environment_of_this_process() -> None:
    checked(gymnasium_env(lake, TASKS))


def test_check_env_passes_on_sessions_that_are_opened_elsewhere() -> None:
    sessions = HostedHere(lake)
    env = gymnasium_env(lambda: BlockingEnvironment(sessions, uuid4().hex), TASKS)
    checked(env)
    env.close()
    assert sessions.opened > 1
    assert sessions.open_now == 0


def test_an_episode_is_what_the_environment_says() -> None:
    env = gymnasium_env(lake, TASKS)
    first, _ = env.reset(seed=0, options={"task": 2})
    assert first == "task 2\n\n0"
    assert env.step("2")[:4] == ("1", 0.0, False, False)
    seen, reward, terminated, truncated, info = env.step("1")
    assert (seen, reward, terminated, truncated) == ("5", 0.0, True, False)
    assert info["prob"] == 1.0


def test_the_seed_decides_the_task() -> None:
    env = gymnasium_env(lake, TASKS)
    firsts = [env.reset(seed=seed)[0] for seed in range(20)]
    assert firsts == [env.reset(seed=seed)[0] for seed in range(20)]
    assert len(set(firsts)) == 3


def test_what_gymnasium_has_no_word_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="one agent"):
        gymnasium_env(lambda: TextArenaEnvironment("TicTacToe-v0"), TASKS)
    with pytest.raises(ConfigError, match="at least one task"):
        gymnasium_env(lake, [])


class NeverAnswers:
    spec = EnvironmentSpec(name="silent", description="")

    def reset(self, task: Task, *, seed: int) -> Observation:
        return Observation(messages=())

    def step(self, action: Message) -> Observation:
        raise AssertionError("its host never asks it")

    def close(self) -> None: ...


def test_a_session_that_never_answers_passes_its_deadline() -> None:
    environment = BlockingEnvironment(HostedHere(NeverAnswers, hangs=True), "s", seconds=0.2)
    environment.reset(TASKS[0], seed=0)
    with pytest.raises(DeadlinePassed, match=r"silent\.step did not answer within 0\.2 s"):
        environment.step(Message(role="assistant", content="hello?"))
    environment.close()
