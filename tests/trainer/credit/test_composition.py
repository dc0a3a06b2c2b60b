"""Presets compose, and what does not go together is refused with the reason."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe, recipe_from
from rlhf.trainer.config import AdvantageConfig, CorrectionConfig, LossConfig, TrainerConfig
from rlhf.trainer.credit.registry import ESTIMATORS, LOSSES, PRESETS, Piece, called_with, needs_reference
from tests.small_tasks import sorting, sorting_pairs

ROOT = Path(__file__).parents[3]
MADE = {"model": {"tiny": {}}, "data": {"train": sorting()}}


def trainer_of(**settings: Any) -> TrainerConfig:
    return recipe_from(MADE | {"trainer": settings}).recipe.trainer


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "distill"])
def test_a_preset_is_its_settings_beneath_the_recipe_s_own(name: str) -> None:
    trainer = trainer_of(algorithm=name)
    for part, settings in PRESETS[name].settings.items():
        found = getattr(trainer, part)
        assert (
            found == settings
            if not isinstance(settings, dict)
            else all(getattr(found, key) == value for key, value in settings.items())
        )
    assert trainer_of(algorithm=name, loss={"entropy_coefficient": 0.5}).loss.entropy_coefficient == 0.5


def test_what_came_from_the_preset_is_told() -> None:
    origins = recipe_from(MADE | {"trainer": {"algorithm": "dapo", "loss": {"clip_low": 0.1}}}).origins
    assert origins["trainer.filter.equal_rewards"] == "algorithm dapo"
    assert origins["trainer.loss.clip_low"] == "python"


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes" / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_each_preset_has_a_recipe_above_the_quickstart_s(recipe: Path) -> None:
    loaded = load_recipe(recipe)
    assert loaded.recipe.trainer.algorithm == recipe.stem
    assert loaded.recipe.trainer.updates == 24
    assert loaded.origins["trainer.updates"].endswith("quickstart.yaml")


def test_every_preset_has_a_recipe() -> None:
    assert {path.stem for path in (ROOT / "recipes" / "presets").glob("*.yaml")} == set(PRESETS) - {"distill"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "grpoo"}, "Input should be 'ppo'"),
        ({"advantage": {"estimator": "gea"}}, "advantage.estimator 'gea' must be one of"),
        ({"loss": {"policy": "ppo2"}}, "loss.policy 'ppo2' must be one of"),
        ({"advantage": {"estimator": "gae"}}, "reads a critic's values"),
        ({"critic": {}}, "does not read its values"),
        ({"group_size": 1}, "compares the samples of a group"),
        ({"advantage": {"estimator": "remax"}, "filter": {"equal_rewards": True}}, "they teach"),
        ({"advantage": {"estimator": "vtrace"}, "critic": {}}, "would weigh it again"),
        ({"loss": {"policy": "policy_gradient"}, "epochs": 2}, "an update takes 2 optimizer steps"),
        (
            {"loss": {"policy": "policy_gradient"}, "max_staleness": 1, "proximal_logprobs": "behaviour"},
            "another policy's samples",
        ),
        ({"loss": {"policy": "gspo", "dual_clip": 3.0}}, "bounds the ratio of ppo"),
        ({"loss": {"constant_tokens": 5}}, "is read by aggregation constant"),
        ({"advantage": {"per_turn": True}}, "is read by gae"),
        ({"advantage": {"lam_length_alpha": 0.05}}, "advantage.lam_length_alpha is read by gae"),
        ({"algorithm": "ppo", "advantage": {"lam_length_alpha": 0.05, "per_turn": True}}, "and not with per_turn"),
        ({"kl": {"target": 0.1}}, "stays 0"),
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, "k1 in the loss (kl.place) teaches nothing"),
        ({"algorithm": "rloo", "kl": {"place": "loss"}}, "k1 in the loss (kl.place) teaches nothing"),
        ({"kl": {"stop": 0.1}}, "an update has only one"),
        ({"kl": {"exact_gradient": True}}, "kl.coefficient 0 turns off"),
        ({"kl": {"coefficient": 0.1, "horizon": 5}}, "kl.horizon is read with kl.target"),
        ({"advantage": {"gamma": 0.9}}, "advantage.gamma is read by gae, vtrace, reinforce_pp"),
        ({"algorithm": "reinforce_pp", "advantage": {"lam": 0.9}}, "advantage.lam is read by gae"),
        ({"loss": {"temperature_negative": 2.0}}, "are read by sapo"),
        ({"filter": {"refill_groups": 3}}, "which is off"),
        ({"overlong": {"penalty_factor": 0.5}}, "which is 0 (off)"),
        ({"kl": {"coefficient": 0.1, "place": "reward", "exact_gradient": True}}, "no gradient runs through KL"),
        ({"correction": {"high": 3.0}}, "nothing would read it; set proximal_logprobs: recomputed"),
        ({"proximal_logprobs": "recomputed", "correction": {"low": 0.5}}, "is a bound of method mask"),
        (
            {"proximal_logprobs": "recomputed", "correction": {"method": "mask", "low": 3.0, "high": 2.0}},
            "would drop tokens that the learner and the engine agree on",
        ),
        ({"reference_path": "there"}, "nothing reads trainer.reference_path"),
        ({"overlong": {"buffer_tokens": 500}}, "the shortest reply would pay"),
    ],
)
def test_pieces_that_do_not_go_together_are_refused_with_the_reason(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        trainer_of(**settings)


CORRECTED = {"16 bits": ({"dtype": "bfloat16"}, {}), "stale": ({}, {"max_staleness": 1})}


@pytest.mark.parametrize(("model", "trainer"), CORRECTED.values(), ids=CORRECTED)
@pytest.mark.parametrize("name", [None, *PRESETS])
def test_samples_of_other_log_probs_than_the_learner_s_are_corrected_unless_the_loss_does_so(
    name: str | None, model: dict[str, Any], trainer: dict[str, Any]
) -> None:
    kind = {"kind": "distill"} if name == "distill" else {}
    reference = {"reference_path": "there"} if name == "distill" else {}
    given = {"model": {"tiny": {}, **model}, "data": MADE["data"]} | kind
    loaded = recipe_from(given | {"trainer": {"algorithm": name, **trainer, **reference}})
    found = loaded.recipe.trainer
    level = "geometric" if name == "gspo" else "token"
    if name == "cispo":
        assert found.proximal_logprobs == "behaviour"
    else:
        assert (found.proximal_logprobs, found.correction.method) == ("recomputed", "truncate")
        assert (found.correction.level, found.correction.high) == (level, 2.0)
        assert loaded.origins["trainer.proximal_logprobs"] in ("model.dtype bfloat16", "trainer.max_staleness")


@pytest.mark.parametrize(("model", "trainer"), CORRECTED.values(), ids=CORRECTED)
def test_a_recipe_may_take_the_engine_s_log_probs_all_the_same(model: dict[str, Any], trainer: dict[str, Any]) -> None:
    given = {"model": {"tiny": {}, **model}, "data": MADE["data"]}
    found = recipe_from(given | {"trainer": {**trainer, "proximal_logprobs": "behaviour"}}).recipe.trainer
    assert (found.proximal_logprobs, found.correction) == ("behaviour", CorrectionConfig())


@pytest.mark.parametrize("name", [None, *(name for name in PRESETS if name != "distill")])
def test_in_float32_without_staleness_nothing_is_corrected(name: str | None) -> None:
    trainer = trainer_of(algorithm=name)
    assert (trainer.proximal_logprobs, trainer.correction) == ("behaviour", CorrectionConfig())


def test_vtrace_corrects_itself_and_a_bound_of_the_recipe_s_own_stays() -> None:
    vtrace = {"estimator": "vtrace"}
    loss = {"policy": "policy_gradient"}
    assert trainer_of(advantage=vtrace, loss=loss, critic={}, max_staleness=2).proximal_logprobs == "behaviour"
    assert trainer_of(max_staleness=1, correction={"high": 5.0}).correction.high == 5.0


@pytest.mark.parametrize(
    ("model", "trainer", "form"),
    [
        ({"dtype": "float32", "lora": {}}, {}, "merged"),
        ({"dtype": "bfloat16", "lora": {}}, {}, "adapter"),
        ({"dtype": "float16", "lora": {"rank": 4}}, {"weight_sync": {"backend": "gloo"}}, "adapter"),
        ({"dtype": "bfloat16", "lora": {"weight_sync": "merged"}}, {}, "merged"),
        ({"dtype": "bfloat16", "lora": {}}, {"weight_sync": {"backend": "nccl"}}, "merged"),
    ],
)
def test_in_16_bits_adapters_are_published_where_they_can_travel_unless_the_recipe_says_so(
    model: dict[str, Any], trainer: dict[str, Any], form: str
) -> None:
    loaded = recipe_from({"model": {"tiny": {}, **model}, "data": MADE["data"], "trainer": trainer})
    assert loaded.recipe.model.lora is not None
    assert loaded.recipe.model.lora.weight_sync == form
    assert (loaded.origins.get("model.lora.weight_sync") == f"model.dtype {model['dtype']}") == (form == "adapter")


def test_k1_in_the_loss_is_taken_for_its_value_beside_an_exact_gradient() -> None:
    assert trainer_of(kl={"coefficient": 0.1, "estimator": "k1", "exact_gradient": True}).kl.estimator == "k1"


@pytest.mark.parametrize(("part", "key", "name"), [("loss", "policy", "ppo"), ("advantage", "estimator", "remax")])
def test_arguments_are_those_of_a_piece_of_one_s_own(part: str, key: str, name: str) -> None:
    own = trainer_of(**{part: {key: "mine:own", "arguments": {"sharpness": 2}}})
    assert own.model_dump()[part]["arguments"] == {"sharpness": 2}
    with pytest.raises(ConfigError, match=rf"{part}\.arguments are those of .* your own; {part}\.{key} is {name}"):
        trainer_of(**{part: {key: name, "arguments": {"sharpness": 2}}})


def test_an_estimator_of_one_s_own_is_told_by_its_arguments_alone() -> None:
    with pytest.raises(ConfigError, match=r"advantage\.gamma is read by .*; advantage\.estimator is mine:own"):
        trainer_of(advantage={"estimator": "mine:own", "gamma": 0.5})


def test_a_reference_is_held_for_a_piece_of_one_s_own() -> None:
    assert needs_reference(trainer_of(loss={"policy": "mine:own"}, hold_reference=True))
    assert not needs_reference(trainer_of(loss={"policy": "mine:own"}))
    with pytest.raises(ConfigError, match="hold_reference is for your own loss or estimator"):
        trainer_of(hold_reference=True)


@pytest.mark.parametrize("table", [LOSSES, ESTIMATORS], ids=["losses", "estimators"])
def test_what_is_registered_is_there_and_takes_the_settings_that_it_names(table: dict[str, Piece]) -> None:
    config = LossConfig() if table is LOSSES else AdvantageConfig()
    for name, piece in table.items():
        bound = called_with(table, name, "", config, {})
        assert set(bound.keywords) == set(piece.settings)
        inspect.signature(bound.func).bind("given", **bound.keywords)


def test_a_group_estimator_of_one_s_own_may_be_filtered() -> None:
    assert trainer_of(advantage={"estimator": "mine:groups"}, filter={"equal_rewards": True}).filter.equal_rewards


@pytest.mark.parametrize("kind", ["sft", "reward_model", "preference"])
def test_an_update_of_examples_is_one_step(kind: str) -> None:
    data = {"train": sorting_pairs()}
    with pytest.raises(ConfigError, match=r"an update of kind: \w+ is one step"):
        recipe_from(MADE | {"kind": kind, "data": data, "trainer": {"epochs": 3}})


def test_a_base_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(ConfigError, match="base must be the path of another recipe"):
        load_recipe(tmp_path / "a.yaml")


def test_the_policy_s_schedule_runs_over_its_own_steps() -> None:
    trainer = trainer_of(algorithm="ppo", updates=10, critic={"warmup_updates": 4})
    assert (trainer.optimizer_steps, trainer.policy_steps) == (80, 48)
