"""Sorting: two splits that share nothing, many answers, mixed demonstrations, and pairs by the number of faults."""

from __future__ import annotations

import pytest

from recipes.tasks.sorting import demonstrated, demonstrations, split_of, tasks
from recipes.tasks.sorting_pairs import faults
from rlhf.config import build
from rlhf.data.config import DatasetConfig
from rlhf.data.preference import PreferencePair
from rlhf.data.sources import load_pairs
from rlhf.errors import DataError
from tests.small_tasks import sorting_pairs

TRAIN = tasks(rows=4096)
EVAL = tasks(rows=256, split="eval")


def test_the_answer_is_the_digits_in_ascending_order() -> None:
    for task in TRAIN:
        assert task.answer == "".join(sorted(task.messages[0].content))
        assert task.row == {"question": task.messages[0].content, "answer": task.answer}


def test_train_and_eval_share_no_problem_whatever_the_seeds() -> None:
    held_out = {task.row["question"] for seed in range(3) for task in tasks(rows=256, split="eval", seed=seed)}
    trained = {task.row["question"] for seed in range(3) for task in tasks(rows=4096, seed=seed)}
    assert not held_out & trained


def test_256_held_out_problems_have_at_least_50_answers() -> None:
    assert len({task.answer for task in EVAL}) >= 50


def test_the_same_seed_draws_the_same_problems_for_ever() -> None:
    assert [task.row["question"] for task in TRAIN[:4]] == GOLDEN_QUESTIONS
    assert tasks(rows=4096) == TRAIN
    assert tasks(rows=4096, seed=1) != TRAIN


def test_more_rows_than_the_split_can_give_is_refused() -> None:
    with pytest.raises(DataError, match=r"rows is 300, but 3 digits give at most 62 .* eval split"):
        tasks(digits=3, rows=300, split="eval")


def test_the_asked_share_of_demonstrations_sorts_the_wrong_way() -> None:
    made = [(asked.content, reply.content) for asked, reply in demonstrations(4000, 0)]
    wrong = sum(reply != "".join(sorted(asked)) for asked, reply in made)
    assert wrong / len(made) == pytest.approx(0.6, abs=0.03)
    for asked, reply in made:
        assert reply in ("".join(sorted(asked)), "".join(sorted(asked, reverse=True)))


def test_demonstrations_come_from_the_train_split() -> None:
    made = list(demonstrations(500, 0))
    assert len(made) == 500
    assert {split_of(asked.content) for asked, _ in made} == {"train"}


def test_the_demonstrations_are_tasks_too_with_the_reply_in_a_column() -> None:
    told = [(task.messages[0].content, task.row["response"]) for task in demonstrated(rows=500, seed=3)]
    assert told == [(asked.content, reply.content) for asked, reply in demonstrations(500, 3)]


def pairs(**arguments: object) -> tuple[PreferencePair, ...]:
    """As a run reads them."""
    found = load_pairs(build(DatasetConfig, sorting_pairs(**{"rows": 2000, **arguments})))
    assert not found.dropped
    return found.pairs


def test_the_chosen_reply_of_a_pair_has_fewer_faults_by_few_or_many() -> None:
    made, gaps = pairs(), []
    for pair in made:
        answer = "".join(sorted(pair.prompt[0].content))
        gaps.append(faults(pair.rejected, answer) - faults(pair.chosen, answer))
    assert min(gaps) > 0
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


GOLDEN_QUESTIONS = ["01154", "24154", "11142", "56441"]
