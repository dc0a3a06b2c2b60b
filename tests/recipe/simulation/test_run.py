"""The loop on a simulated clock: times that can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from rlhf.recipe.loading import load_recipe
from rlhf.recipe.simulation.run import Durations, EpisodeWork, GroupWork, Prediction, Trouble, predict
from tests.end_to_end.running import ROOT

DURATIONS = Durations(
    step=0.01, sequence=0.001, prompt_token=1e-3, train_token=0.01, weight_sync=1.0, rest=0.5, restart=30.0
)
EPISODE = EpisodeWork(prompt_tokens=100, tokens=200)
NONE = Trouble()


def predicted(
    trouble: Trouble = NONE,
    *groups: GroupWork,
    staleness: int = 0,
    ranks: int = 1,
    cores: float = inf,
    updates: int = 8,
) -> Prediction:
    """Two engines with a thread and eight places each; updates of four groups."""
    settings = [
        "trainer.groups_per_update=4",
        "trainer.filter.equal_rewards=true", "trainer.filter.refill_groups=8", f"trainer.max_staleness={staleness}",
        f"trainer.deepspeed.ranks={ranks}", "rollout.engines=2",
    ]  # fmt: skip
    recipe = load_recipe(ROOT / "recipes/quickstart.yaml", settings).recipe
    works = groups or (GroupWork(episodes=(EPISODE,) * 2),)
    return predict(recipe, works, DURATIONS, trouble, places=8, cores=cores, updates=updates)


READING = 4 * 100 * 1e-3
"""The seconds in which an engine reads its four prompts."""
TRAINING = 0.01 * 4 * (100 + 2 * 200)


def test_a_synchronous_update_is_the_sum_of_its_phases() -> None:
    found = predicted()
    sampling = 200 * (0.01 + 4 * 0.001)
    assert found.update_seconds == pytest.approx(READING + sampling + TRAINING + 1.5, rel=0.01)
    assert found.samples_per_second == pytest.approx(8 / found.update_seconds)
    assert found.tokens_per_second == pytest.approx(1600 / found.update_seconds)
    assert found.learner_busy == pytest.approx(TRAINING / found.update_seconds)
    assert found.learner_waits == pytest.approx((READING + sampling) / found.update_seconds, rel=0.01)
    assert (found.staleness_mean, found.staleness_max) == pytest.approx((0, 0), abs=1e-9)


def test_with_staleness_the_engines_play_while_the_learner_trains() -> None:
    found = predicted(staleness=1)
    assert found.update_seconds == pytest.approx(TRAINING + 1.5, rel=0.02)
    assert found.learner_waits == pytest.approx(0, abs=0.01)
    assert found.staleness_max == 1
    assert 0 < found.staleness_mean <= 1


def test_on_shared_cores_playing_ahead_gains_only_the_cores_that_nobody_used() -> None:
    alone, shared = predicted(staleness=1), predicted(staleness=1, cores=2, ranks=2)
    assert alone.update_seconds < shared.update_seconds <= predicted().update_seconds + 0.01


def test_scores_and_environments_take_their_time() -> None:
    turns = GroupWork(episodes=(replace(EPISODE, turns=2, environment_seconds=6.0),) * 2, scoring_seconds=3.0)
    assert predicted(NONE, turns).update_seconds == pytest.approx(predicted().update_seconds + 9.0, rel=0.15)


def test_filtered_groups_are_played_in_the_place_of_others() -> None:
    group = GroupWork(episodes=(EPISODE,) * 2)
    found = predicted(NONE, group, replace(group, filtered=True))
    assert found.samples_per_second * found.update_seconds == pytest.approx(8)
    assert found.update_seconds > predicted().update_seconds


def test_stragglers_hold_updates_up() -> None:
    trouble = Trouble(straggler_share=0.05, straggler_factor=50)
    assert predicted(trouble).update_seconds > 2 * predicted().update_seconds
    assert predicted(Trouble(straggler_share=0.0, straggler_factor=50)) == predicted()


def test_engines_that_fail_come_back_and_their_replies_go_on_elsewhere() -> None:
    found = predicted(Trouble(failures_per_hour=120), updates=40)
    assert found.engines_lost > 3
    assert found.episodes_lost == 0
    assert found.update_seconds > predicted().update_seconds


def test_a_simulation_repeats() -> None:
    trouble = Trouble(straggler_share=0.1, straggler_factor=5, failures_per_hour=60)
    assert predicted(trouble, staleness=1) == predicted(trouble, staleness=1)
