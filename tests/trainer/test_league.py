"""A league: who plays against whom, and when a policy enters it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import CheckpointError, ConfigError
from rlhf.trainer.league import League, LeagueConfig, by_win_rate
from rlhf.types import Group, Scored, Task
from tests.trainer.made import made_groups

TASK = Task(id="t", messages=())
ROLES = ("first", "second")


def league(folder: Path, trained: Sequence[str] = ("main",), fixed: Sequence[str] = (), **config: Any) -> League:
    return League(LeagueConfig(policy="main", **config), trained, fixed, seed=3, folder=folder)


def won(one: League, opponent: str, games: int, of: int) -> list[Group]:
    """Games of the policy as first against one opponent, in a group that was drawn so."""
    (group,) = made_groups(1, 2 * of)
    play = one.seat(ROLES)
    drawn = (n for n in range(10_000) if {play(role, TASK, n) for role in ROLES} == {"main", opponent})
    group = replace(group, ticket=replace(group.ticket, ordinal=next(drawn)))
    samples = [
        replace(
            sample,
            trajectory=replace(sample.trajectory, policy=("main", opponent)[place % 2]),
            score=Scored(value=float((place % 2 == 0) == (place // 2 < games))),
        )
        for place, sample in enumerate(group.samples)
    ]
    return [replace(group, samples=tuple(samples))]


def pairs(one: League, count: int) -> Counter[tuple[str, str]]:
    play = one.seat(ROLES)
    return Counter((play("first", TASK, n), play("second", TASK, n)) for n in range(count))


def test_it_plays_itself_and_those_who_entered_in_either_seat(tmp_path: Path) -> None:
    one = league(tmp_path, fixed=("old",), add_every=2, members=2)
    assert set(pairs(one, 100)) == {("main", "main"), ("main", "old"), ("old", "main")}
    assert [one.entrant(version) for version in range(1, 9)] == [None, "main_past_1", None, "main_past_2"] * 2
    assert set(pairs(one, 200)) == {("main", "main"), ("main", "old"), ("old", "main")}, "their weights are not there"
    one.learn([], 9)
    (tmp_path / "main@6").mkdir()
    (tmp_path / "main@10").mkdir()
    again = league(tmp_path, fixed=("old",), add_every=2, members=2)
    again.read(one.write(tmp_path).parent)
    assert [copy.name for copy in tmp_path.glob("main@*")] == ["main@6"], "another entered later, in what is gone"
    drawn = pairs(again, 4000)
    assert {*drawn} == {("main", "main")} | {
        pair for other in ("old", "main_past_1", "main_past_2") for pair in (("main", other), (other, "main"))
    }
    assert drawn["main", "main"] == pytest.approx(1000, abs=100)
    assert drawn["main_past_1", "main"] == pytest.approx(500, abs=75)
    with pytest.raises(ConfigError, match="a league needs an environment with several roles; this one has agent"):
        one.seat(("agent",))
    (tmp_path / "league.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"league\.json cannot be read"):
        again.read(tmp_path)


def test_a_group_keeps_its_players_when_one_enters(tmp_path: Path) -> None:
    one = league(tmp_path, members=1, add_every=1)
    play = one.seat(ROLES)
    before = [play("first", TASK, n) for n in range(50)]
    assert set(before) == {"main"}
    one.entrant(1)
    one.learn([], 2)
    assert [play("first", TASK, n) for n in range(50)] == before
    assert {play("first", TASK, n) for n in range(50, 100)} == {"main", "main_past_1"}


def test_it_enters_when_it_wins_and_its_results_become_the_member_s(tmp_path: Path) -> None:
    one = league(tmp_path, add_every=1, add_above=0.7, members=2)
    one.seat(ROLES)
    assert one.entrant(1) == "main_past_1", "the first one has nobody to beat"
    one.learn([], 2)
    metrics = one.learn(won(one, "main_past_1", 6, 10), 3)
    assert metrics["league/win_rate"] == metrics["league/win_rate/main@1"] == 0.6
    assert metrics["league/elo/main"] > 1000 > metrics["league/elo/main@1"]
    assert metrics["league/elo/main"] + metrics["league/elo/main@1"] == pytest.approx(2000)
    assert one.entrant(3) is None
    late = won(one, "main_past_1", 0, 10)
    assert one.learn(won(one, "main_past_1", 20, 20), 4)["league/win_rate"] == pytest.approx(26 / 30)
    assert one.entrant(4) == "main_past_2"
    one.learn([], 5)
    metrics = one.learn(won(one, "main_past_2", 8, 10), 6)
    assert {name for name in metrics if "elo" in name} == {"league/elo/main", "league/elo/main@1", "league/elo/main@4"}
    assert one.entrant(6) == "main_past_1", "the oldest leaves"
    assert one.copy_of("main_past_1") == tmp_path / "main@6"
    metrics = one.learn(late, 7)  # which began against who has left
    assert {name for name in metrics if "elo" in name} == {"league/elo/main@4", "league/elo/main@6"}
    one.entrant(7)
    assert not {name for name in one.learn([], 8) if "elo" in name}, "nobody has an opponent"


def test_an_exploiter_plays_the_policy_alone_and_a_function_may_draw(tmp_path: Path) -> None:
    one = league(tmp_path, ("main", "exploiter"), ("old",), match=f"{__name__}:worst")
    play = one.seat(ROLES)
    assert all({play(role, TASK, n) for role in ROLES} == {"exploiter", "main"} for n in range(1, 40, 2))
    assert all({play(role, TASK, n) for role in ROLES} == {"main", "old"} for n in range(0, 40, 2))
    with pytest.raises(ConfigError, match=r"league\.match drew 'nobody'; the opponents are main"):
        league(tmp_path, match=f"{__name__}:nobody").seat(ROLES)("first", TASK, 0)


def test_those_that_it_beats_least_are_drawn_most() -> None:
    draws = random.Random(0)
    drawn = Counter(by_win_rate({"hard": 0.0, "even": 0.5, "beaten": 1.0}, draws) for _ in range(2000))
    assert drawn["hard"] / drawn["even"] == pytest.approx(4, rel=0.2)
    assert not drawn["beaten"]
    assert by_win_rate({"beaten": 1.0}, draws) == "beaten"


def worst(win_rates: Mapping[str, float], draws: random.Random) -> str:
    assert set(win_rates.values()) == {0.5}
    return "old" if "old" in win_rates else "main"


def nobody(win_rates: Mapping[str, float], draws: random.Random) -> str:
    return "nobody"
