"""Kuhn poker pays what its rules say, and its figures are those of the literature and of trying everything."""

from __future__ import annotations

import random
from itertools import product

import pytest

from recipes.tasks import kuhn_poker
from recipes.tasks.kuhn_poker import INFORMATION_SETS, KuhnPokerEnvironment, expected_value, exploitability, seated
from recipes.tasks.random_play import kuhn_poker as demonstrations
from rlhf.types import Message


@pytest.mark.parametrize("bluffs", [0, 0.2, 1 / 3])
def test_nothing_wins_against_kuhn_s_equilibria_where_the_first_player_loses_an_eighteenth(bluffs: float) -> None:
    first = {"J": bluffs, "Jpb": 0, "Q": 0, "Qpb": bluffs + 1 / 3, "K": 3 * bluffs, "Kpb": 1}
    strategy = first | {"Jp": 1 / 3, "Jb": 0, "Qp": 0, "Qb": 1 / 3, "Kp": 1, "Kb": 1}
    assert exploitability(strategy) == pytest.approx(0)
    assert expected_value(strategy) == pytest.approx(-1 / 18)


def test_uniform_play_has_the_known_nash_conv() -> None:
    assert 2 * exploitability(dict.fromkeys(INFORMATION_SETS, 0.5)) == pytest.approx(0.9167, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_response_wins_as_much_as_the_best_of_all_pure_strategies(seed: int) -> None:
    draws = random.Random(seed)
    strategy = {shown: draws.random() for shown in INFORMATION_SETS}
    pure = [dict(zip(INFORMATION_SETS, bets, strict=True)) for bets in product((0.0, 1.0), repeat=12)]
    assert kuhn_poker.best_response_value(strategy, 0) == pytest.approx(
        max(expected_value(seated(one, strategy)) for one in pure)
    )
    assert kuhn_poker.best_response_value(strategy, 1) == pytest.approx(
        max(-expected_value(seated(strategy, o)) for o in pure)
    )


@pytest.mark.parametrize(
    ("deal", "replies", "shown", "first_wins"),
    [
        ("KQ", "pp", ["K", "Qp"], 1),
        ("JQ", "bb", ["J", "Qb"], -2),
        ("JK", "b?", ["J", "Kb"], 1),  # any other reply folds
        ("QK", "pbp", ["Q", "Kp", "Qpb"], -1),
        ("KJ", "pbb", ["K", "Jp", "Kpb"], 2),
    ],
)
def test_a_player_reads_its_card_and_the_bets(deal: str, replies: str, shown: list[str], first_wins: float) -> None:
    game = KuhnPokerEnvironment()
    heard = [game.reset(next(task for task in kuhn_poker.deals() if task.id == deal), seed=0)]
    heard += [game.step(Message(role="assistant", content=reply)) for reply in replies]
    assert [one.messages[0].content for one in heard if not one.done] == shown
    assert heard[-1].info["rewards"] == {"first": first_wins, "second": -first_wins}


def test_demonstrations_show_all_that_a_player_may_read() -> None:
    assert {asked.content for asked, _ in demonstrations(500, 0)} == set(INFORMATION_SETS)
