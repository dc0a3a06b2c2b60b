"""Games between policies: who won, how often, and the ratings that explain it best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlhf.runs.payoff import Results, add_game, elo_ratings, games_of, win_rate
from rlhf.types import Scored, Unscored
from tests.trainer.made import made_groups


def test_a_game_is_won_by_the_policy_with_the_higher_reward() -> None:
    (group,) = made_groups(1, 8)
    players = ("new", "old", "new", "old", "old", "new", "new", "new")
    rewards = (1.0, -1.0, 0.0, 0.0, 2.0, 1.0, 1.0, 0.0)
    samples = tuple(
        replace(sample, trajectory=replace(sample.trajectory, policy=player), score=Scored(value=reward))
        for sample, player, reward in zip(group.samples, players, rewards, strict=True)
    )
    group = replace(group, samples=samples)
    assert list(games_of(group, 2)) == [("new", "old", 1.0), ("new", "old", 0.5), ("old", "new", 1.0)]
    lost = replace(samples[0], score=Unscored(kind="timeout"))
    assert next(games_of(replace(group, samples=(lost, *samples[1:])), 2)) == ("new", "old", 0.5)


def test_ratings_are_the_most_likely_ones() -> None:
    rng, results = np.random.default_rng(0), Results()
    for one, other, chance in (("a", "b", 0.9), ("b", "c", 0.7), ("a", "c", 0.8), ("c", "d", 1.0)):
        for _ in range(40):
            add_game(results, one, other, float(rng.random() < chance))
    assert win_rate(results, "d") == 0
    assert win_rate(results, "c", "d") == 1
    assert win_rate(results, "a", "d") is None
    ratings = elo_ratings(results)
    for one, played in results.items():  # of the most likely ratings alone each player's points are as expected
        odds = {other: 10 ** ((ratings[other] - ratings[one]) / 400) for other in played}
        expected = sum((games + 1) / (1 + odds[other]) for other, (_, games) in played.items())
        assert expected == pytest.approx(sum(points + 0.5 for points, _ in played.values()))
    assert sum(ratings.values()) == pytest.approx(4000)
    assert ratings["a"] > ratings["b"] > ratings["c"] > ratings["d"]
    assert elo_ratings({}) == {}
