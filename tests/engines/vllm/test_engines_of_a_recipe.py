"""Engines as a recipe says them: their tensor-parallel sizes, their workers, the seeds of their requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf.engines.config import RolloutConfig
from rlhf.engines.vllm.settings import requests_have_seeds
from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import engine_roles, engine_sizes
from tests.engines.vllm.made import made_settings
from tests.small_tasks import sorting


def recipe(**rollout: object) -> Recipe:
    return recipe_from({"model": {"path": "a/b"}, "data": {"train": sorting()}, "rollout": rollout}).recipe


def test_one_size_is_that_of_every_engine() -> None:
    assert RolloutConfig(engines=2, tensor_parallel_size=4).tensor_parallel_sizes == (4, 4)
    assert engine_sizes(recipe(engines=2, tensor_parallel_size=4)) == {"engine": ("", 4)}


def test_a_list_has_a_size_for_every_engine_and_says_how_many_there_are() -> None:
    config = recipe(tensor_parallel_size=[1, 2, 1]).rollout
    assert (config.engines, config.tensor_parallel_sizes) == (3, (1, 2, 1))


def test_engines_of_each_size_are_workers_of_a_role_with_their_gpus() -> None:
    roles = engine_roles(recipe(tensor_parallel_size=[1, 2, 1], gpus_per_engine=1, cpus_per_engine=2))
    assert [(role.name, role.count, role.cpus, role.gpus) for role in roles] == [
        ("engine-tp1", 2, 2, 1), ("engine-tp2", 1, 4, 2),
    ]  # fmt: skip


def test_requests_have_seeds_unless_a_gpu_would_sample_one_by_one() -> None:
    settings = made_settings("a", device="cuda")
    assert requests_have_seeds(settings, model_runner=2)
    assert not requests_have_seeds(settings, model_runner=1)
    assert requests_have_seeds(replace(settings, device="cpu"), model_runner=1)


@pytest.mark.parametrize("given", [0, [], [1, 0], "two", [1, "2"], True])
def test_a_size_is_a_whole_number_above_0(given: object) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.tensor_parallel_size: give a whole number above 0, or a list"):
        recipe(tensor_parallel_size=given)


def test_a_list_of_another_length_than_the_number_of_engines_is_refused() -> None:
    with pytest.raises(ConfigError, match="engines is 3, but tensor_parallel_size lists 2"):
        recipe(engines=3, tensor_parallel_size=[1, 2])


@pytest.mark.parametrize(
    ("gpus", "dtype", "precision"), [(1, "float32", "ieee"), (1, "bfloat16", None), (0, "float32", None)]
)
def test_products_of_float32_are_exact_on_a_gpu_too(gpus: int, dtype: str, precision: str | None) -> None:
    """Triton rounds them to TF32 by default, and no log-prob would be that of the learner."""
    given = {"model": {"path": "a/b", "dtype": dtype}, "rollout": {"gpus_per_engine": gpus}}
    (role,) = engine_roles(recipe_from({**given, "data": {"train": sorting()}}).recipe)
    assert role.env.get("TRITON_F32_DEFAULT") == precision
