"""How ranks may share the work, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.errors import ConfigError
from rlhf.models.config import ModelConfig
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe
from rlhf.trainer.rank.zero_config import deepspeed_config
from rlhf.trainer.settings import LearnerSettings
from tests.small_tasks import sorting


def recipe(attention: str = "sdpa", **deepspeed: Any) -> Recipe:
    values = {
        "model": {"tiny": {}, "attention": attention},
        "data": {"train": sorting()},
        "cluster": {"kind": "ray"},
        "trainer": {"deepspeed": deepspeed},
    }
    return recipe_from(values).recipe


def told(device: str = "cpu", **deepspeed: Any) -> dict[str, Any]:
    """What DeepSpeed is told of sharding."""
    trainer = recipe(**deepspeed).trainer
    settings = LearnerSettings(model_path="x", model=ModelConfig(tiny={}), trainer=trainer, device=device)
    told: dict[str, Any] = deepspeed_config(settings, trainer.optimizer, 1, 1000)["zero_optimization"]
    return told


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_is_told_to_offload_what_the_recipe_says_and_nothing_else(stage: int) -> None:
    plain = told(zero_stage=stage)
    assert plain["stage"] == stage
    assert not {"offload_optimizer", "offload_param"} & plain.keys()
    offloaded = {"device": "cpu", "pin_memory": False}
    assert told(zero_stage=stage, offload_optimizer="cpu") == plain | {"offload_optimizer": offloaded}


def test_deepspeed_is_told_to_offload_weights_where_it_gathers_them() -> None:
    offloaded = {"device": "cpu", "pin_memory": True}
    plain = told("cuda", zero_stage=3)
    assert told("cuda", zero_stage=3, offload_parameters="cpu") == plain | {"offload_param": offloaded}


def test_offloading_what_stays_where_it_is_is_refused() -> None:
    with pytest.raises(ConfigError, match="at zero_stage 0 the optimizer updates the model's own weights"):
        recipe(offload_optimizer="cpu")
    with pytest.raises(ConfigError, match="at zero_stage 2 every forward pass uses the whole weights"):
        recipe(offload_parameters="cpu", zero_stage=2)


def test_rows_are_shared_by_teams_of_ranks() -> None:
    assert recipe(ranks=4, sequence_parallel=2).trainer.deepspeed.sequence_parallel == 2
    with pytest.raises(ConfigError, match=r"3 rank\(s\) cannot be divided into teams of 2"):
        recipe(ranks=3, sequence_parallel=2)


def test_rows_are_shared_around_sdpa_alone() -> None:
    assert recipe(attention="eager", ranks=2).model.attention == "eager"
    with pytest.raises(ConfigError, match=r"model\.attention is eager, but ranks that share rows"):
        recipe(attention="eager", ranks=2, sequence_parallel=2)
