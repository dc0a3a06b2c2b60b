"""Hundreds of groups against a server of OpenEnv whose calls break: it knows no request ids, so a step that is lost is
never asked again; its episode is played again from the start, and the accounting balances."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.rollout.turns import PLAYS
from rlhf.types import Message, Observation, Task
from tests.ecosystem.test_openenv import stock
from tests.ecosystem.venvs import PROGRAMS
from tests.env.fated import RETURN
from tests.env.faulty import FATES, proxied, seeded
from tests.env.looping import run_to_the_end

pytestmark = pytest.mark.ecosystem
UPDATES = 24
PATIENT = Patience(deadlines=Deadlines(open_seconds=12, reset_seconds=3, step_seconds=3), pause_seconds=0.01)


class Counted:
    """Environments that count the steps that were asked of them, their failures by kind, and the calls that the end of
    the run cancelled."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self.spec, self._pool, self.steps, self.cancelled = pool.spec, pool, 0, 0
        self.failures: Counter[str] = Counter()

    async def open(self, session: str) -> Environment:
        return CountedSession(self, await self._pool.open(session))


class CountedSession:
    def __init__(self, counted: Counted, inner: Environment) -> None:
        self._counted, self._inner, self.failed = counted, inner, False

    async def reset(self, task: Task, *, seed: int) -> Observation:
        with self._counting():
            return await self._inner.reset(task, seed=seed)

    async def step(self, action: Message) -> Observation:
        assert not self.failed, "an episode whose step was lost is not played on"
        self._counted.steps += 1
        with self._counting():
            return await self._inner.step(action)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except EnvironmentFailed as error:
            self.failed = True
            self._counted.failures[error.kind] += 1
            raise
        except asyncio.CancelledError:
            self._counted.cancelled += 1
            raise

    async def close(self) -> None:
        await self._inner.close()


async def test_a_step_that_is_lost_on_its_server_is_failed_and_the_run_goes_on(tmp_path: Path):
    log = tmp_path / "log"
    with stock(256, PROGRAMS / "counting_server.py", str(log)) as url:
        refused = seeded(["refuse"], 0.01, seed=1)
        fates = seeded((*FATES, "raise"), 0.01)
        async with proxied(url, fates, lambda connection: refused(connection) == "refuse") as proxy:
            environments = Counted(await EnvironmentPool.connect([Address(url=proxy.url)], PATIENT))
            books = await run_to_the_end(environments, tmp_path / "run", UPDATES)
    books.check(UPDATES, RETURN)
    fatal = Counter({fate: n for (fate, what), n in proxy.applied.items() if what == "observation"})
    assert {fate for fate, _ in proxy.applied} == {*FATES, "raise", "refuse"}
    played = environments.failures
    assert played["raised"] == fatal["raise"]
    unheard = fatal["drop"] + fatal["error"] + fatal["swallow"] - played["lost"] - played["timeout"]
    assert 0 <= unheard <= environments.cancelled, "a lost answer fails its episode, unless the run ends first"
    assert played["lost"] >= fatal["drop"] + fatal["error"] - unheard  # more, where the pool saw the server gone
    opened = proxy.applied["raise", "frame"]  # the server's answer to the opening
    assert books.failures["environment_raised"] == fatal["raise"] + opened
    assert books.failures["environment_timeout"] == played["timeout"]
    assert PLAYS * books.failures["environment_lost"] <= played["lost"], "such an episode is played again"
    executed = log.read_text().split()
    assert len(executed) == len(set(executed)), "no step was made twice"
    assert environments.steps == len(executed), "an answer was lost, and not the step"
