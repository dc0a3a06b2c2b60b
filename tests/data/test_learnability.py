"""Tasks are chosen by how much they still teach: seldom where rewards never differ, none for ever, and repeatably."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.data.learnability import FLOOR, RECENT, ChosenTasks, Learnability, TaskChoices, probabilities
from rlhf.data.mixing import MixedOrder
from rlhf.types import Failed, Filtered, Group, Sample, Scored, Ticket, Unscored
from tests.trainer.made import made_groups

(WHOLE,) = made_groups(1, 4)


def group(ordinal: int, *rewards: float | None) -> Group:
    """A group with these rewards; None is a scorer that broke."""
    samples = [
        Sample(trajectory=one.trajectory, score=Unscored(kind="timeout") if value is None else Scored(value=value))
        for one, value in zip(WHOLE.samples, rewards, strict=False)
    ]
    return replace(WHOLE, ticket=Ticket(ordinal=ordinal, version=0), samples=tuple(samples))


def tasks(*sizes: int, seed: int = 7, choices: TaskChoices | None = None) -> ChosenTasks[str]:
    """Datasets of so many tasks, `a0`, `a1`, … and `b0`, …, that are all chosen from."""
    rows = [[f"{name}{n}" for n in range(size)] for name, size in zip("abc", sizes, strict=False)]
    return ChosenTasks(MixedOrder(rows, [None] * len(rows), seed), range(len(rows)), choices)


def by_hand(played: list[list[float]]) -> list[float]:
    """The reference, task by task: each from the variances of its groups, the newest last."""
    known, unknown = [], []
    for variances in played:
        weights = [RECENT * (1 - RECENT) ** age for age in reversed(range(len(variances)))]
        known.append(sum(weight * variance for weight, variance in zip(weights, variances, strict=True)))
        unknown.append(1 - sum(weights))
    most = max((one / (1 - rest) for one, rest in zip(known, unknown, strict=True) if rest < 1), default=0.0)
    teaches = [one + rest * most for one, rest in zip(known, unknown, strict=True)]
    if not sum(teaches):
        return [1 / len(played)] * len(played)
    return [FLOOR / len(played) + (1 - FLOOR) * one / sum(teaches) for one in teaches]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.1875, 0.25]), max_size=4), min_size=1, max_size=12))
def test_probabilities_are_those_of_the_recent_variances(played: list[list[float]]) -> None:
    seen = Learnability(len(played))
    for task, variances in enumerate(played):
        for variance in variances:
            seen.count(task, variance)
    found = probabilities(seen.groups, seen.variances)
    assert found == pytest.approx(by_hand(played))
    assert found.min() >= FLOOR / len(played) * (1 - 1e-12)


def test_draws_are_as_frequent_as_their_probabilities_and_none_is_forgotten() -> None:
    chosen, often = tasks(40), 40 * 100
    for task in range(40):
        for _ in range(30):
            chosen._learnability[0].count(task, 0.25 if task < 8 else 0.0)
    drawn = Counter(chosen[ordinal] for ordinal in range(often))
    expected = by_hand([[0.25 * (task < 8)] * 30 for task in range(40)])
    assert {name for name, _ in drawn.most_common(8)} == {f"a{task}" for task in range(8)}
    for task, share in enumerate(expected):
        assert drawn[f"a{task}"] == pytest.approx(share * often, abs=5 * (share * often) ** 0.5)


def test_before_anything_was_played_and_while_all_teach_the_same_the_order_is_that_of_uniform() -> None:
    chosen, uniform = tasks(10, 30), MixedOrder([[f"{c}{n}" for n in range(k)] for c, k in (("a", 10), ("b", 30))],
                                                [None, None], 7)  # fmt: skip
    assert [chosen[ordinal] for ordinal in range(200)] == [uniform[ordinal] for ordinal in range(200)]
    for ordinal in range(40):
        chosen.settled(ordinal, group(ordinal, 1.0, 0.0))
    chosen.advance(39)
    assert [chosen[ordinal] for ordinal in range(200, 400)] == [uniform[ordinal] for ordinal in range(200, 400)]


def test_the_shares_of_a_mixture_stay_whatever_its_parts_teach() -> None:
    chosen = tasks(10, 30)
    for ordinal in range(400):
        chosen.settled(ordinal, group(ordinal, 1.0, float(chosen[ordinal][0] == "a")))
        chosen.advance(ordinal)
    drawn = Counter(chosen[ordinal][0] for ordinal in range(400, 800))
    assert drawn == {"a": 100, "b": 300}


def outcome(ordinal: int, task: str) -> Group | Filtered | Failed:
    """Even tasks teach, some groups more; every seventh group fails, and groups of equal rewards are filtered."""
    if ordinal % 7 == 3:
        return Failed(kind="timeout")
    played = group(ordinal, 1.0, 1.0 if int(task[1:]) % 2 else 0.4 * (ordinal % 2), None)
    return Filtered(group=played, reason="equal rewards") if played.all_equal else played


def walked(chosen: ChosenTasks[str], start: int, stop: int, rng: random.Random) -> list[str]:
    """The tasks of ordinals, eight an update, settled in any order."""
    seen = []
    for first in range(start, stop, 8):
        ordinals = list(range(first, first + 8))
        seen += [chosen[ordinal] for ordinal in ordinals]
        rng.shuffle(ordinals)
        for ordinal in ordinals:
            chosen.settled(ordinal, outcome(ordinal, chosen[ordinal]))
        chosen.advance(first + 7)
    return seen


def test_choices_do_not_depend_on_which_group_ends_first_and_a_resume_makes_the_same() -> None:
    whole = walked(tasks(12), 0, 400, random.Random(0))
    assert walked(tasks(12), 0, 400, random.Random(1)) == whole
    assert Counter(name for name in whole[200:] if int(name[1:]) % 2 == 0).total() > 150, "which teach"
    before = tasks(12)
    walked(before, 0, 200, random.Random(2))
    saved = before.choices(199)
    assert walked(tasks(12, choices=saved), 200, 400, random.Random(3)) == whole[200:]


def test_a_checkpoint_keeps_the_tasks_that_are_out_and_what_counts_from_its_update_on() -> None:
    chosen = tasks(12)
    walked(chosen, 0, 80, random.Random(0))
    out = {ordinal: chosen[ordinal] for ordinal in range(80, 96)}
    for ordinal in range(80, 90):
        chosen.settled(ordinal, outcome(ordinal, out[ordinal]))
    saved = TaskChoices(
        **json.loads(json.dumps(asdict(chosen.choices(87))))
    )  # the eight of an update, not advanced yet
    chosen.advance(87)
    again = tasks(12, choices=saved)
    assert {ordinal: again[ordinal] for ordinal in range(88, 96)} == {n: out[n] for n in range(88, 96)}
    assert [again[ordinal] for ordinal in range(96, 200)] == [chosen[ordinal] for ordinal in range(96, 200)]


def test_a_failed_group_says_nothing_of_its_task_and_one_without_company_teaches_nothing() -> None:
    chosen = tasks(4)
    for ordinal, ended in enumerate([Failed(kind="engine"), group(1, 1.0, None), group(2, 0.0, 1.0)]):
        assert chosen[ordinal]
        chosen.settled(ordinal, ended)
    chosen.advance(2)
    seen = chosen._learnability[0]
    assert sorted(zip(seen.groups.tolist(), seen.variances.tolist(), strict=True)) == [
        (0, 0),
        (0, 0),
        (1, 0),
        (1, RECENT / 4),
    ]


def test_a_set_of_uniform_order_beside_one_that_chooses_keeps_its_epochs() -> None:
    rows = [[f"a{n}" for n in range(10)], [f"b{n}" for n in range(10)]]
    chosen = ChosenTasks(MixedOrder(rows, [1.0, 1.0], 3), [1])
    drawn = []
    for ordinal in range(200):
        drawn.append(chosen[ordinal])
        chosen.settled(ordinal, group(ordinal, 1.0, float(drawn[-1] == "b3")))
        chosen.advance(ordinal)
    uniform = [name for name in drawn if name[0] == "a"]
    assert all(sorted(uniform[n : n + 10]) == rows[0] for n in range(0, 100, 10))
    assert chosen.choices(199).chosen == ()
    assert np.argmin(chosen._learnability[1].variances) == 3
