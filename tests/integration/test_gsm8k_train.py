"""The GSM8K recipe trains on a CPU by the overrides that its header names, on the dataset's real rows."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.datasets import GSM8K
from tests.end_to_end.running import ROOT, Run, largest_difference, train

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RECIPE = ROOT / "recipes" / "gsm8k_grpo.yaml"


def overrides_of_the_header() -> list[str]:
    """The command for a CPU in the recipe's first comment, without `rlhf train RECIPE`."""
    comment = [line.removeprefix("#").strip() for line in RECIPE.read_text().partition("\nmodel:")[0].splitlines()]
    command = " ".join(
        line.removesuffix("\\") for line in comment[comment.index(f"rlhf train recipes/{RECIPE.name} \\") :]
    )
    return command.split()[3:]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("gsm8k")
    return train(folder / "run", folder / "models", *overrides_of_the_header(), "cluster.kind=local", recipe=RECIPE)


def test_it_trains_two_updates(run: Run) -> None:
    assert run.summary["outcome"] == "finished"
    assert (run.summary["updates"], run.summary["samples"]) == (2, 2 * 4 * 8)
    assert run.summary["eval_problems"] == 8


def test_the_episodes_are_rows_of_the_dataset_with_their_final_answers(run: Run) -> None:
    rows = [json.loads(line) for line in (GSM8K / "train.jsonl").read_text().splitlines()]
    answers = {row["question"]: row["answer"].partition("####")[2].strip() for row in rows}
    asked = {
        episode.prompt[-1]["content"].partition("\nThink step by step")[0]: episode.answer for episode in run.episodes
    }
    assert len(asked) >= 8
    assert asked == {question: answers[question] for question in asked}


def test_every_reply_was_scored_by_math_verify(run: Run) -> None:
    outcomes = Counter(episode.outcome for episode in run.episodes)
    assert outcomes["trained"] == 64
    assert outcomes["unscored"] == outcomes["failed"] == 0
    assert all(episode.reward in (0.0, 1.0) for episode in run.episodes if episode.outcome == "trained")


def test_groups_of_equal_rewards_are_replaced_until_the_refill_budget_is_spent(run: Run) -> None:
    """An untrained model is always wrong, so all groups are these; an update may refill twice its four."""
    assert run.summary["group_counts"]["filtered"] >= 8


def test_engine_and_learner_agree_in_bfloat16(run: Run) -> None:
    assert largest_difference(run.episodes) < 0.1
