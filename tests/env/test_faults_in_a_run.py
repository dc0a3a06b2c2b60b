"""Hundreds of groups against environments and servers that break: every fault has its documented outcome, the run goes
on, and the accounting of groups and samples balances."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.env.client.pool import EnvironmentPool
from rlhf.env.client.remote import Address, Patience
from rlhf.env.config import IsolationKind
from rlhf.env.hosting.isolation import Deadlines
from rlhf.rollout.turns import PLAYS
from tests.commanded import commanded
from tests.env.fated import OUTCOMES, RETURN, is_broken, met
from tests.env.faulty import FATES, proxied, seeded
from tests.env.looping import GROUP, Books, run_to_the_end

pytestmark = pytest.mark.engine
FATED = "tests.env.fated:Fated"
UPDATES = 16
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
        # The same seeds meet the same fate again: an episode that is lost is played `PLAYS` times.
        expected[f"environment_{OUTCOMES[fate]}"] += fatal[fate] // (PLAYS if OUTCOMES[fate] == "lost" else 1)
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
async def test_environments_that_break_on_a_server(isolation: IsolationKind, fates: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with fated(log, fates, isolation) as url:
        pool = await EnvironmentPool.connect([Address(url=url)], UNHURRIED)
        books = await run_to_the_end(pool, tmp_path / "run", UPDATES)
    books.check(UPDATES, RETURN)
    check_failures(books, log, fates)


async def test_calls_that_a_server_of_ours_refuses_drops_or_answers_late_lose_nothing(tmp_path: Path) -> None:
    """Each is asked again under its request id, and no step is executed twice: it would pay another reward."""
    fate, refused = seeded(FATES, ONE_PERCENT), seeded(["refuse"], ONE_PERCENT, seed=1)
    with fated(tmp_path / "log", [], "thread") as url:
        async with proxied(url, fate, lambda connection: refused(connection) == "refuse") as proxy:
            pool = await EnvironmentPool.connect([Address(url=proxy.url)], PATIENT)
            books = await run_to_the_end(pool, tmp_path / "run", UPDATES)
    books.check(UPDATES, RETURN)
    assert books.failures == {}
    assert {fate for fate, _ in proxy.applied} == {*FATES, "refuse"}
    assert len({fate for fate, what in proxy.applied if what == "observation"}) > 1
