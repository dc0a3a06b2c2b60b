"""Results of games between policies, and their Elo ratings."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np

from rlhf.types import Group

Results = dict[str, dict[str, list[float]]]
"""Of each player against each other: its points, a win is 1 and a draw 0.5, and the games that they played."""
MEAN_RATING = 1000.0
STEPS, PRECISION = 10_000, 1e-9
"""Most steps of the fit of ratings, and the relative change at which it ends."""


def add_game(results: Results, player: str, other: str, points: float) -> None:
    """Add a game between two players, in place."""
    for one, its, against in ((player, points, other), (other, 1 - points, player)):
        held = results.setdefault(one, {}).setdefault(against, [0.0, 0.0])
        held[0] += its
        held[1] += 1


def win_rate(results: Results, player: str, *others: str) -> float | None:
    """Return a player's points per game, against `others` or against all; None if they have not played."""
    played = results.get(player, {})
    points, games = np.sum([played[one] for one in others or played if one in played] or [[0, 0]], axis=0)
    return float(points / games) if games else None


def games_of(group: Group, roles: int) -> Iterator[tuple[str, str, float]]:
    """Yield the games between two policies in a group whose episodes have this number of `roles`: both policies, and
    the points of the first. The policy whose roles have the higher mean reward has won. A game of a policy with itself,
    or in which one has no reward, is left out."""
    episodes: dict[int, dict[str, list[float]]] = {}
    for sample, trajectory, score in group.trainable:
        episodes.setdefault(sample // roles, {}).setdefault(trajectory.policy, []).append(score.value)
    for rewards in episodes.values():
        if len(rewards) == 2:
            (player, own), (other, its) = ((name, fmean(values)) for name, values in rewards.items())
            yield player, other, 0.5 * (1 + float(np.sign(own - its)))


def elo_ratings(results: Results) -> dict[str, float]:
    """Return the rating of each player: 400 points are odds of 10 to 1, and the mean is 1000.

    They are the most likely ones of the Bradley-Terry model, by Hunter's algorithm (doi:10.1214/aos/1079120141). One
    more game, drawn, between players who met keeps the rating of one who always won finite.
    """
    players = [player for player, played in results.items() if played]
    if not players:
        return {}
    met = np.array([[float(other in results[one]) for other in players] for one in players])
    played = np.array([[results[one].get(other, (0, 0)) for other in players] for one in players])
    points, games = (played[..., 0] + met / 2).sum(1), played[..., 1] + met
    strength = np.ones(len(players))
    for _ in range(STEPS):
        before = strength
        strength = points / (games / (strength[:, None] + strength)).sum(1)
        strength = strength / np.exp(np.log(strength).mean())
        if np.abs(strength / before - 1).max() < PRECISION:
            break
    return dict(zip(players, (MEAN_RATING + 400 * np.log10(strength)).tolist(), strict=True))
