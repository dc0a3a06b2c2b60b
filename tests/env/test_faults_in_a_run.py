"""Hundreds of groups against environments and servers that break: every fault has its documented outcome, the run goes
on, and the accounting of groups and samples balances."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.env.client.pool import EnvironmentPool, RemoteServer
from rlhf.env.client.remote import Address, Patience
from rlhf.env.config import IsolationKind
from rlhf.env.hosting.isolation import Deadlines
from rlhf.errors import EnvironmentFailed, FailureBudgetSpent
from rlhf.protocols import Environment
from rlhf.types import Message, Observation
from tests.commanded import commanded
from tests.env.fated import OUTCOMES, RETURN, is_broken, met
from tests.env.faulty import FATES, proxied, seeded
from tests.env.hosted import hosted
from tests.env.looping import GROUP, Books, run_to_the_end
from tests.fakes import TASK
from tests.pace import scaled

pytestmark = pytest.mark.engine
FATED = "tests.env.fated:Fated"
FEW_UPDATES, UPDATES, MANY_UPDATES = 12, 16, 48
PATIENT = Patience(deadlines=Deadlines(open_seconds=20, reset_seconds=10, step_seconds=10), tries=5, pause_seconds=0.01)
"""So many tries that among thousands of calls none is unlucky with all of them."""
UNHURRIED = replace(PATIENT, deadlines=Deadlines(open_seconds=60, reset_seconds=60, step_seconds=60))
"""Where the environment's own deadline is to pass, and not that of the wire, however busy the machine is."""
SECONDS = 1.5
"""Deadline of an environment's methods; those that are late take longer."""
ONE_PERCENT = 0.01


@contextmanager
def fated(log: Path, fates: list[str], isolation: IsolationKind, rate: float = ONE_PERCENT) -> Iterator[str]:
    """Yield the URL of a server of environments that break."""
    log.touch()
    arguments = json.dumps({"log": str(log), "fates": fates, "rate": rate, "late_seconds": SECONDS + 0.5})
    options = ("--isolation", isolation, "--arguments", arguments)
    deadlines = ("--step-seconds", str(SECONDS), "--reset-seconds", "20")
    with commanded("env", FATED, *options, *deadlines) as (url, _):
        yield url


def check_failures(books: Books, log: Path, fates: list[str]) -> None:
    """Each fate that the environments met is a failure of its kind, and there is no other failure."""
    fatal = met(log)
    assert {fate for fate in fates if fatal[fate]} == set(fates), "every fate was met"
    expected = Counter({"environment_raised": fatal["reset"]})
    for fate in fates:
        expected[f"environment_{OUTCOMES[fate]}"] += fatal[fate]
    lost_with_others = books.failures.pop("too_few_survivors", 0)
    failures = Counter({kind: n for kind, n in books.failures.items() if kind != "too_few_survivors"})
    assert failures == expected
    assert lost_with_others < GROUP * 4
    broken = {record.ordinal for record in books.records if is_broken(record.task)}
    assert books.groups.failed >= len(broken) > 0
    assert fatal["reset"] == GROUP * len(broken)


FROM_INSIDE: list[tuple[IsolationKind, list[str]]] = [
    ("thread", ["raise", "hang", "late"]),
    ("process", ["raise", "hang", "late", "exit"]),
]


@pytest.mark.parametrize(("isolation", "fates"), FROM_INSIDE)
@pytest.mark.parametrize("updates", [UPDATES, pytest.param(MANY_UPDATES, marks=pytest.mark.slow)])
async def test_environments_that_break_on_a_server(
    isolation: IsolationKind, fates: list[str], updates: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with fated(log, fates, isolation) as url:
        pool = await EnvironmentPool.connect([Address(url=url)], UNHURRIED)
        books = await run_to_the_end(pool, tmp_path / "run", updates)
    books.check(updates, RETURN)
    check_failures(books, log, fates)


@pytest.mark.parametrize(("isolation", "fates"), FROM_INSIDE)
async def test_environments_that_break_in_the_run_itself(
    isolation: IsolationKind, fates: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    arguments = {"log": str(log), "fates": fates, "late_seconds": SECONDS + 0.5}
    module, _, name = FATED.rpartition(":")
    async with hosted(
        name, module=f"{module}:", isolation=isolation, turn=SECONDS, sessions=256, arguments=arguments
    ) as environments:
        books = await run_to_the_end(environments, tmp_path / "run", UPDATES)
    books.check(UPDATES, RETURN)
    check_failures(books, log, fates)


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("updates", [FEW_UPDATES, pytest.param(MANY_UPDATES, marks=pytest.mark.slow)])
async def test_calls_that_a_server_of_ours_refuses_drops_or_answers_late_lose_nothing(
    isolation: IsolationKind, updates: int, tmp_path: Path
) -> None:
    """Each is asked again under its request id, and no step is executed twice: it would pay another reward."""
    fate, refused = seeded(FATES, ONE_PERCENT), seeded(["refuse"], ONE_PERCENT, seed=1)
    with fated(tmp_path / "log", [], isolation) as url:
        async with proxied(url, fate, lambda connection: refused(connection) == "refuse") as proxy:
            pool = await EnvironmentPool.connect([Address(url=proxy.url)], PATIENT)
            books = await run_to_the_end(pool, tmp_path / "run", updates)
    books.check(updates, RETURN)
    assert books.failures == {}
    assert {fate for fate, _ in proxy.applied} == {*FATES, "refuse"}
    assert len({fate for fate, what in proxy.applied if what == "observation"}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "fates"), FROM_INSIDE)
async def test_everything_at_once(isolation: IsolationKind, fates: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with fated(log, fates, isolation) as url:
        async with proxied(url, seeded(FATES, ONE_PERCENT)) as proxy:
            pool = await EnvironmentPool.connect([Address(url=proxy.url)], PATIENT)
            books = await run_to_the_end(pool, tmp_path / "run", MANY_UPDATES)
    books.check(MANY_UPDATES, RETURN)
    check_failures(books, log, fates)


class Dying(RemoteServer):
    """A server that is killed as the n-th step of its sessions is about to be asked of it."""

    kill: Callable[[], None]
    steps: int

    async def try_open(self) -> Environment:
        return Session(await super().try_open(), self.step)

    def step(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            self.kill()


class Session:
    """One that says when it steps."""

    def __init__(self, inner: Environment, at_step: Callable[[], None]) -> None:
        self.reset, self.close = inner.reset, inner.close
        self._inner, self._at_step = inner, at_step

    async def step(self, action: Message) -> Observation:
        self._at_step()
        return await self._inner.step(action)


async def test_when_one_of_two_servers_dies_its_sessions_are_lost_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    arguments = json.dumps({"log": str(tmp_path / "log"), "fates": []})
    quick = Patience(deadlines=Deadlines(open_seconds=10, step_seconds=3), pause_seconds=0.01)
    with (
        commanded("env", FATED, "--arguments", arguments) as (one, dying),
        commanded("env", FATED, "--arguments", arguments) as (two, _),
    ):
        dies, lives = await Dying.connect(Address(url=one), quick), await RemoteServer.connect(Address(url=two), quick)
        dies.kill, dies.steps = dying.kill, 250
        pool = EnvironmentPool([dies, lives], quick.deadlines.open_seconds)
        books = await run_to_the_end(pool, tmp_path / "run", FEW_UPDATES)
    books.check(FEW_UPDATES, RETURN)
    assert set(books.failures) <= {"environment_lost", "too_few_survivors"}
    assert books.failures["environment_lost"] > 0


async def test_when_the_only_server_dies_the_run_ends_by_name_and_its_books_balance(tmp_path: Path) -> None:
    quick = Patience(deadlines=Deadlines(open_seconds=1, step_seconds=1), pause_seconds=0.01)
    arguments = json.dumps({"log": str(tmp_path / "log"), "fates": []})
    with commanded("env", FATED, "--arguments", arguments) as (url, dying):
        dies = await Dying.connect(Address(url=url), quick)
        dies.kill, dies.steps = dying.kill, 500
        pool = EnvironmentPool([dies], quick.deadlines.open_seconds)
        books = await run_to_the_end(pool, tmp_path / "run", FEW_UPDATES)
    assert isinstance(books.ended, FailureBudgetSpent)
    books.check_balance()
    books.check_numbers(RETURN)
    assert books.failures["environment_lost"] > 0


async def test_a_step_on_a_server_that_hangs_for_good_is_a_timeout(tmp_path: Path) -> None:
    """Also under its request id: every try is silent."""
    with fated(tmp_path / "log", [], "thread") as url:
        silent = [False]
        async with proxied(url, lambda piece: "swallow" if silent[0] else "pass") as proxy:
            pool = await EnvironmentPool.connect(
                [Address(url=proxy.url)], Patience(deadlines=Deadlines(reset_seconds=0.6))
            )
            environment = await pool.open("s")
            silent[0] = True
            with pytest.raises(EnvironmentFailed, match="timeout: no answer to reset within"):
                await asyncio.wait_for(environment.reset(TASK, seed=0), scaled(20))
            await environment.close()
