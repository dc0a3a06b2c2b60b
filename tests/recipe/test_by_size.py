"""Deadlines and Ray's object store follow the sizes of model and batch; what a recipe says wins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.models.config import ModelConfig
from rlhf.recipe.by_size import ORIGIN, parameter_count, with_sizes
from rlhf.recipe.loading import LoadedRecipe, recipe_from
from rlhf.recipe.model_configs import known_models
from rlhf.recipe.planning.known_shapes import rough_model
from tests.small_tasks import sorting

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def loaded(model: dict[str, object], **values: object) -> LoadedRecipe:
    given = recipe_from({"model": model, "data": {"train": sorting()}, **values})
    return with_sizes(given, given.recipe.model)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [(LLAMA, 70_553_706_496), ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768), ("Qwen/Qwen3-30B-A3B", 30_532_122_624)],
)
def test_weights_are_counted_without_torch_as_the_modules_have_them(name: str, parameters: int) -> None:
    assert rough_model(name, known_models()[name]).shape.parameters == pytest.approx(parameters, rel=0.002)


def test_routed_experts_are_counted_by_deepseeks_name_too() -> None:
    values = {"hidden_size": 8, "num_hidden_layers": 1, "moe_intermediate_size": 4, "n_routed_experts": 16}
    assert rough_model("a model", values).shape.parameters == 16 * 3 * 8 * 4 + 4 * 8 * 8


def test_a_width_for_every_layer_is_counted_by_the_largest() -> None:
    """Gemma 3n lists them."""
    values = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": [16, 32]}
    assert rough_model("a model", values).shape.parameters == 2 * (3 * 8 * 32 + 4 * 8 * 8)


def test_a_large_model_has_time_to_load_to_save_and_to_travel() -> None:
    found = loaded({"path": LLAMA, "dtype": "bfloat16"}, trainer={"deepspeed": {"ranks": 64, "zero_stage": 3}})
    recipe = found.recipe
    gigabytes = 141
    assert recipe.rollout.start_timeout_seconds > gigabytes / 0.1
    assert recipe.trainer.deepspeed.start_timeout_seconds > gigabytes / 0.1
    assert recipe.trainer.deepspeed.timeout_seconds > gigabytes / 0.1
    assert recipe.rollout.weight_sync_timeout_seconds > 600
    assert found.origins["rollout.start_timeout_seconds"] == ORIGIN


def test_a_small_model_keeps_the_deadlines_of_the_schema() -> None:
    given = recipe_from({"model": {"tiny": {}}, "data": {"train": sorting()}})
    assert with_sizes(given, given.recipe.model) == given


def test_a_long_reply_has_a_tenth_of_a_second_for_every_token() -> None:
    found = loaded({"path": LLAMA, "dtype": "bfloat16"}, sampling={"max_tokens": 16384})
    assert found.recipe.rollout.generate_timeout_seconds == 1638


def test_what_the_recipe_says_wins() -> None:
    found = loaded({"path": LLAMA}, rollout={"start_timeout_seconds": 60})
    assert found.recipe.rollout.start_timeout_seconds == 60


def test_a_folder_that_is_broken_is_left_to_its_own_check(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert parameter_count(ModelConfig(path=str(tmp_path))) == 0
