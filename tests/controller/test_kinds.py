"""What each kind of recipe lays beneath it, requires and refuses."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.recipe.kinds import FROM_DATA, start_of
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_episodes, check_pieces
from rlhf.recipe.schema import Recipe
from tests.small_tasks import sorting, sorting_pairs

SORTING = sorting(digits=5)
HELD_OUT = sorting(digits=5, split="eval")
EXACT = {"kind": "exact"}


def recipe(kind: str, *, data: dict[str, Any] | None = None, **parts: Any) -> Recipe:
    data = data or {"train": sorting_pairs() if kind == "preference" else SORTING}
    return recipe_from({"kind": kind, "model": {"tiny": {}}, "data": data, **parts}).recipe


def refusal(kind: str, **parts: Any) -> str:
    with pytest.raises(ConfigError) as error:
        recipe(kind, **parts)
    return str(error.value)


class TestDistillation:
    def test_its_algorithm_lies_beneath_the_recipe_and_no_reward_is_needed(self):
        distilled = recipe("distill", trainer={"reference_path": "teacher", "loss": {"clip_high": 0.3}})
        assert distilled.trainer.algorithm == "distill"
        assert distilled.trainer.advantage.estimator == "distillation"
        assert distilled.trainer.group_size == 1
        assert (distilled.trainer.loss.clip_low, distilled.trainer.loss.clip_high) == (0.2, 0.3)
        assert distilled.reward.kind == "none"

    def test_it_has_a_reward_where_the_recipe_gives_one(self):
        told = {"data": {"train": SORTING, "eval": HELD_OUT}, "reward": {"kind": "exact"}}
        assert recipe("distill", trainer={"reference_path": "teacher"}, **told).reward.kind == "exact"

    def test_a_teacher_is_required(self):
        assert "trainer.reference_path is required by kind: distill" in refusal("distill")

    def test_another_algorithm_is_of_another_kind(self):
        trainer = {"reference_path": "teacher", "algorithm": "grpo", "group_size": 8}
        assert "trainer.algorithm is grpo" in refusal("distill", trainer=trainer)
        outcomes = {"advantage": {"estimator": "leave_one_out"}, "kl": {"coefficient": 0.1}, "group_size": 8}
        trainer = {"reference_path": "teacher", **outcomes}
        assert "trainer.advantage.estimator is leave_one_out" in refusal("distill", trainer=trainer, reward=EXACT)

    def test_replies_that_nothing_scores_are_not_evaluated(self):
        error = refusal("distill", data={"train": SORTING, "eval": HELD_OUT}, trainer={"reference_path": "teacher"})
        assert "no reward scores the replies to data.eval" in error


def test_an_algorithm_that_learns_from_rewards_needs_one():
    assert "reward.kind is none, but advantage.estimator group_relative" in refusal("rl", reward={"kind": "none"})


class TestOffline:
    def test_it_reads_episodes_instead_of_tasks(self):
        assert recipe("offline", data={"episodes": "runs/a"}).data.train_sets == {}
        assert "data.episodes is required by kind: offline" in refusal("offline")
        assert "data.episodes is for kind: offline" in refusal("rl", data={"train": SORTING, "episodes": "runs/a"})
        assert "data.train is missing" in refusal("rl", data={"shuffle": True})

    def test_a_loss_for_the_weights_that_sampled_needs_a_correction(self):
        plain = {"advantage": {"estimator": "leave_one_out"}, "loss": {"policy": "policy_gradient"}}
        error = refusal("offline", data={"episodes": "a"}, trainer=plain)
        assert "other weights sampled the recorded episodes" in error
        weighed = plain | {"proximal_logprobs": "recomputed", "correction": {"method": "truncate"}}
        assert recipe("offline", data={"episodes": "a"}, trainer=weighed).kind == "offline"
        vtrace = {"advantage": {"estimator": "vtrace"}, "loss": {"policy": "policy_gradient"}, "critic": {}}
        assert recipe("offline", data={"episodes": "a"}, trainer=vtrace).kind == "offline"

    def test_the_episodes_are_there_and_of_the_recipe_s_distribution(self, tmp_path: Path):
        offline = recipe("offline", data={"episodes": str(tmp_path)}, sampling={"temperature": 0.7})
        with pytest.raises(DataError, match="there are no recorded episodes"):
            check_episodes(offline)
        (tmp_path / "episodes").mkdir()
        (tmp_path / "episodes" / "part-000001.parquet").touch()
        check_episodes(offline)
        (tmp_path / "recipe.yaml").write_text("sampling: {temperature: 1.0}")
        with pytest.raises(ConfigError, match=r"sampling\.temperature is 0\.7, but .* was sampled at 1\.0"):
            check_episodes(offline)


class TestPreference:
    def test_settings_of_another_loss_are_refused(self):
        assert (
            recipe("preference", trainer={"preference": {"loss": "kto", "desirable_weight": 2.0}}).kind == "preference"
        )
        smoothed = {"preference": {"loss": "ipo", "label_smoothing": 0.1}}
        assert "label_smoothing is for dpo" in refusal("preference", trainer=smoothed)
        weighed = {"preference": {"undesirable_weight": 2.0}}
        assert "undesirable_weight are for kto" in refusal("preference", trainer=weighed)

    def test_kto_needs_other_prompts(self):
        alone = {"preference": {"loss": "kto"}, "groups_per_update": 1}
        assert "compares replies with those to other prompts" in refusal("preference", trainer=alone)

    def test_pairs_are_columns_of_a_dataset(self):
        assert "chosen_column and rejected_column are required by kind: preference" in refusal(
            "preference", data={"train": {"path": "rows.jsonl"}}
        )
        margins = {"path": "rows.jsonl", "chosen_column": "a", "rejected_column": "b", "margin_column": "c"}
        assert "kind: preference has no margins" in refusal("preference", data={"train": margins})


def test_a_judge_that_compares_needs_two_replies_to_a_problem() -> None:
    judge = {"kind": "judge", "judge": {"url": "http://h", "model": "m", "mode": "pairwise"}}
    held_out = sorting(digits=5, split="eval")
    asked = {"train": SORTING, "eval": held_out}
    assert "data.eval.samples is 1, but reward.judge.mode: pairwise" in refusal("rl", data=asked, reward=judge)
    assert recipe(
        "rl", data={**asked, "eval": {**held_out, "samples": 2, "temperature": 1}}, reward=judge
    ).reward.compares


class TestOwn:
    def test_a_kind_of_one_s_own_reads_what_it_likes(self):
        own = recipe("mine:start", data={"shuffle": False}, kind_arguments={"longest": 3})
        assert (own.plays, own.is_own_kind, own.data.train_sets) == (False, True, {})

    def test_a_kind_that_is_none_is_refused_with_those_that_are(self):
        assert "kind: must be rl, distill, offline, sft" in refusal("slf")
        assert "kind_arguments are for your own kind; kind is rl" in refusal("rl", kind_arguments={"a": 1})

    def test_one_that_cannot_be_called_is_refused_before_anything_starts(self):
        with pytest.raises(ConfigError, match="kind is json:dumps, which cannot be called with 4 values"):
            check_pieces(recipe("json:dumps"))

    def test_every_registered_kind_takes_what_the_run_gives(self):
        for kind in FROM_DATA:
            signature(start_of(kind, {})).bind(*range(4))
