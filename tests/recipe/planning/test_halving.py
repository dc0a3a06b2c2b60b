"""Successive halving over settings, with trials that are a table."""

from __future__ import annotations

from itertools import product

import pytest

from rlhf.recipe.planning.fitting import Changes
from rlhf.recipe.planning.halving import TrialResult, halved, quickest

ENGINES: list[Changes] = [{"engines": "2"}, {"engines": "4"}, {"engines": "8"}]
TOKENS: list[Changes] = [{"tokens": "16"}, {"tokens": "1"}]
PLACES: list[Changes] = [{"places": "64"}]
AXES = (ENGINES, TOKENS, PLACES)


def seconds(changes: Changes) -> float:
    """A made machine, on which two engines with large micro-batches are quickest."""
    engines = {"1": 4.0, "2": 2.0, "4": 2.5, "8": 6.0}[changes.get("engines", "1")]
    tokens = {"4": 1.0, "16": 0.7, "1": 2.0}[changes.get("tokens", "4")]
    return engines * tokens + (0.5 if "places" in changes else 0.0)


def measured(changes: Changes, updates: int) -> TrialResult:
    return TrialResult(changes=changes, updates=updates, seconds=seconds(changes))


def broken(changes: Changes, updates: int) -> TrialResult:
    return TrialResult(changes=changes, updates=updates, seconds=None, failure="no room")


def test_ten_trials_find_the_best_of_the_grid() -> None:
    results = list(halved(AXES, measured, 10))
    grid = [one | two | three for one, two, three in product([{}, *ENGINES], [{}, *TOKENS], [{}, *PLACES])]
    best = quickest(results)
    assert best is not None
    assert best.seconds == min(map(seconds, grid))
    assert len(results) <= 10


def test_the_recipe_as_it_is_comes_first_and_finalists_are_measured_longest() -> None:
    results = list(halved(AXES, measured, 20))
    assert results[0].changes == {}
    *_, last = results
    assert last.updates == max(one.updates for one in results)
    assert [one.changes for one in results if one.updates == last.updates] == [
        {"engines": "2", "tokens": "16"}, {"engines": "4", "tokens": "16"},
    ]  # fmt: skip


@pytest.mark.parametrize("trials", [1, 2, 3, 5, 9])
def test_there_are_never_more_trials_than_asked_for(trials: int) -> None:
    results = list(halved(AXES, measured, trials))
    assert len(results) == trials
    assert quickest(results) is not None


def test_a_trial_that_fails_is_not_the_quickest_and_nothing_is_built_on_it() -> None:
    def sometimes(changes: Changes, updates: int) -> TrialResult:
        return (broken if changes.get("engines") == "2" else measured)(changes, updates)

    results = list(halved(AXES, sometimes, 10))
    best = quickest(results)
    assert best is not None
    assert best.changes["engines"] == "4"
    assert sum("2" in one.changes.values() for one in results) == 1


def test_without_any_time_there_is_no_quickest() -> None:
    assert quickest(list(halved(AXES, broken, 10))) is None


def test_a_recipe_without_other_settings_is_only_measured() -> None:
    assert [(one.changes, one.updates) for one in halved([[], [], []], measured, 10)] == [({}, 2), ({}, 8)]
