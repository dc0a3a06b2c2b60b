"""Pairs on the sorting task: the chosen reply has fewer faults, by few or by many."""

from __future__ import annotations

from recipes.tasks.sorting import split_of
from recipes.tasks.sorting_pairs import faults
from rlhf.config import build
from rlhf.data.config import DatasetConfig
from rlhf.data.preference import PreferencePair
from rlhf.data.sources import load_pairs
from tests.small_tasks import sorting_pairs


def pairs(**arguments: object) -> tuple[PreferencePair, ...]:
    """As a run reads them."""
    found = load_pairs(build(DatasetConfig, sorting_pairs(**{"rows": 2000, **arguments})))
    assert not found.dropped
    return found.pairs


def test_the_chosen_reply_of_a_pair_has_fewer_faults() -> None:
    for pair in pairs():
        answer = "".join(sorted(pair.prompt[0].content))
        assert faults(pair.chosen, answer) < faults(pair.rejected, answer)


def test_pairs_are_easy_and_hard() -> None:
    made = pairs()
    gaps = []
    for pair in made:
        answer = "".join(sorted(pair.prompt[0].content))
        gaps.append(faults(pair.rejected, answer) - faults(pair.chosen, answer))
    assert sum(gap == 1 for gap in gaps) > len(gaps) / 20
    assert sum(gap >= 8 for gap in gaps) > len(gaps) / 5
    assert sum(pair.chosen == "".join(sorted(pair.prompt[0].content)) for pair in made) < 0.7 * len(gaps)


def test_faults_count_wrong_order_and_wrong_digits() -> None:
    assert [faults(reply, "12345") for reply in ("12345", "21345", "54321", "1234", "123455", "12344", "")] == [
        0, 1, 10, 5, 5, 10, 25,
    ]  # fmt: skip


def test_held_out_pairs_ask_about_other_problems_and_a_seed_draws_the_same_for_ever() -> None:
    assert {split_of(pair.prompt[0].content) for pair in pairs(split="eval")} == {"eval"}
    assert {split_of(pair.prompt[0].content) for pair in pairs()} == {"train"}
    assert pairs() == pairs()
    assert pairs() != pairs(seed=1)
