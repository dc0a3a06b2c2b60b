"""Recipes with several datasets: described by `rlhf check`, and refused in one line where their parts disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.apps.cli.check import run_check
from rlhf.errors import UserError

SAMPLED = ("data.eval.hard.samples=4", "data.eval.hard.temperature=1")


@pytest.fixture
def sets(recipe: Path, rows: Path) -> Path:
    """The small recipe with a mixture of two and two named evaluation sets."""
    recipe.write_text(
        recipe.read_text().replace(
            f"train: {{path: {rows}}}",
            f"train: [{{path: {rows}, weight: 2}}, {{path: {rows}, weight: 1}}]\n"
            f"  eval: {{easy: {{path: {rows}}}, hard: {{path: {rows}}}}}",
        )
    )
    return recipe


def refusal(recipe: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        run_check(recipe, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_dataset_is_described(sets: Path, rows: Path, capsys: pytest.CaptureFixture[str]):
    assert run_check(sets, SAMPLED) == 0
    described = capsys.readouterr().out
    for part in (
        f"training data  {rows}, weight 2",
        f"held out       easy: {rows}; 1 sample of each problem, greedily",
        f"held out       hard: {rows}; 4 samples of each problem, at temperature 1",
    ):
        assert part in described


def test_every_dataset_is_looked_at(sets: Path):
    assert "absent.jsonl" in refusal(sets, "data.eval.hard.path=./absent.jsonl")


def test_a_vote_over_whole_replies_is_for_rewards_that_compare_whole_replies(sets: Path):
    voted = (*SAMPLED, "data.eval.hard.majority_at=[4]")
    assert run_check(sets, voted) == 0
    error = refusal(sets, *voted, "reward.kind=math")
    assert "data.eval.hard.majority_at needs vote_after with reward.kind: math" in error
    assert run_check(sets, (*voted, "reward.kind=math", "data.eval.hard.vote_after='####'")) == 0


def test_an_evaluation_with_longer_replies_than_the_model_takes_names_the_set(sets: Path):
    assert "data.eval.hard.max_tokens is 500" in refusal(sets, "data.eval.hard.max_tokens=500")


def test_an_answer_column_is_needed_in_every_dataset(sets: Path):
    assert refusal(sets, "data.eval.hard.answer_column=null").startswith("data.eval.hard.answer_column is null")


def test_fine_tuning_needs_a_reply_in_every_row(sets: Path):
    assert "ends with the user's message, so there is no reply to imitate; write resp" in refusal(sets, "kind=sft")
