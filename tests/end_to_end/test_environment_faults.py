"""A training run, whole, whose environment server refuses, drops, hangs, answers 500 and is slow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.commanded import commanded
from tests.end_to_end.running import largest_difference, train
from tests.end_to_end.test_environment import RECIPE, SMALL
from tests.env.faulty import FATES, proxied, seeded

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
CALCULATOR = ("rlhf.env.tools:CalculatorEnvironment", "--arguments", '{"digits": 3}')
RATE = 0.02
"""Of a small run one percent would be a handful of calls."""


async def test_it_goes_on_to_its_end_and_its_books_balance(tmp_path: Path, cache: Path) -> None:
    refused = seeded(["refuse"], 0.1, seed=1)
    with commanded("env", *CALCULATOR) as (url, _):
        fates = seeded((*FATES, "raise"), RATE)
        async with proxied(url, fates, lambda connection: refused(connection) == "refuse") as proxy:
            served = ("environment.environment=null", "environment.arguments={}", f"environment.urls=[{proxy.url}]")
            patience = ("environment.turn_timeout_seconds=6", "environment.start_timeout_seconds=20")
            changes = (*SMALL, *served, *patience, "trainer.updates=4")
            run = await asyncio.to_thread(train, tmp_path / "run", cache, *changes, recipe=RECIPE)
    accounts, groups = run.summary["sample_counts"], run.summary["group_counts"]
    assert (run.summary["outcome"], run.summary["updates"]) == ("finished", 4)
    assert accounts["admitted"] == sum(accounts.values()) - accounts["admitted"] == 4 * groups["admitted"]
    assert groups["admitted"] == sum(groups.values()) - groups["admitted"]
    assert groups["trained"] == 16
    assert {fate for fate, _ in proxy.applied} >= {"drop", "refuse", "raise"}
    failed = [episode for episode in run.episodes if episode.outcome == "failed"]
    raised = proxy.applied["raise", "observation"] + proxy.applied["raise", "frame"]
    assert [episode.failure_kind for episode in failed] == ["environment_raised"] * raised
    assert {episode.reward for episode in failed} == {None}
    assert largest_difference(run.episodes) <= 1e-4
