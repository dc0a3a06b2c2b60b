"""Heads that cannot be dealt out evenly are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_heads
from tests.small_tasks import sorting

QWEN = {"num_attention_heads": 28, "num_key_value_heads": 4}


def checked(config: dict[str, Any], **values: object) -> None:
    check_heads(recipe_from({"model": {"path": "a/b"}, "data": {"train": sorting()}, **values}).recipe, config)


@pytest.mark.parametrize("sizes", [1, 2, 4, 28, [1, 2]])
def test_sizes_that_share_heads_evenly_pass(sizes: int | list[int]) -> None:
    checked(QWEN, rollout={"tensor_parallel_size": sizes})


@pytest.mark.parametrize("sizes", [3, 8, 14, [1, 8]])
def test_others_are_refused_with_those_that_do(sizes: int | list[int]) -> None:
    with pytest.raises(ConfigError, match=r"has 28 attention heads and 4 key/value heads.*; use one of 1, 2, 4, 28$"):
        checked(QWEN, rollout={"tensor_parallel_size": sizes})


def test_ranks_that_share_rows_are_held_to_the_same() -> None:
    deepspeed = {"ranks": 8, "sequence_parallel": 8}
    with pytest.raises(ConfigError, match=r"trainer\.deepspeed\.sequence_parallel is 8, but the model has 28"):
        checked(QWEN, trainer={"deepspeed": deepspeed})
    checked({"text_config": {"num_attention_heads": 8}}, trainer={"deepspeed": deepspeed})


def test_a_model_that_does_not_say_its_heads_is_believed() -> None:
    checked({}, rollout={"tensor_parallel_size": 3})
