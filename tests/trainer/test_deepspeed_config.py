"""How ranks may share the work, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.errors import ConfigError
from rlhf.layers import recipe_from
from rlhf.recipe import Recipe
from rlhf.trainer.config import DeepSpeedConfig


def recipe(attention: str = "sdpa", **deepspeed: Any) -> Recipe:
    values = {
        "model": {"tiny": {}, "attention": attention},
        "data": {"train": {"sorting": {}}},
        "cluster": {"kind": "ray"},
        "trainer": {"deepspeed": deepspeed},
    }
    return recipe_from(values).recipe


def test_state_is_offloaded_where_it_is_sharded() -> None:
    for stage in (1, 2, 3):
        assert DeepSpeedConfig(zero_stage=stage, offload_optimizer="cpu").offload_optimizer == "cpu"
    assert DeepSpeedConfig(zero_stage=3, offload_parameters="cpu").offload_parameters == "cpu"


def test_offloading_what_stays_where_it_is_is_refused() -> None:
    with pytest.raises(ConfigError, match="at zero_stage 0 the optimizer updates the model's own weights"):
        recipe(offload_optimizer="cpu")
    with pytest.raises(ConfigError, match="at zero_stage 2 every forward pass uses the whole weights"):
        recipe(offload_parameters="cpu", zero_stage=2)


def test_rows_are_shared_by_teams_of_ranks() -> None:
    assert recipe(ranks=4, sequence_parallel=2).trainer.deepspeed.sequence_parallel == 2
    with pytest.raises(ConfigError, match=r"3 rank\(s\) cannot be divided into teams of 2"):
        recipe(ranks=3, sequence_parallel=2)


@pytest.mark.parametrize("attention", ["eager", "flash_attention_2"])
def test_rows_are_shared_around_sdpa_alone(attention: str) -> None:
    assert recipe(attention=attention, ranks=2).model.attention == attention
    with pytest.raises(ConfigError, match=f"model.attention is {attention}, but ranks that share rows"):
        recipe(attention=attention, ranks=2, sequence_parallel=2)
