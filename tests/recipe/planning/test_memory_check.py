"""What cannot fit is refused before anything starts; nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.errors import PlacementError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.machines import GIB
from rlhf.recipe.planning.memory_check import check_fits, check_memory
from rlhf.recipe.preflight import preflight
from rlhf.recipe.schema import Recipe

QUICKSTART = Path("recipes/quickstart.yaml")
ON_GPUS = ("model.dtype=bfloat16", "trainer.deepspeed.gpus_per_rank=1", "rollout.gpus_per_engine=1")


def recipe(*overrides: str) -> Recipe:
    return load_recipe(QUICKSTART, overrides).recipe


def test_a_rank_that_a_card_cannot_hold_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"a rank needs at least 128 GiB for the state of 7\.6e9 weights"):
        check_fits(recipe(*ON_GPUS), 7_615_616_512, 79 * GIB, 1024 * GIB)


def test_the_same_rank_fits_in_shards() -> None:
    shards = ("trainer.deepspeed.ranks=4", "trainer.deepspeed.zero_stage=3")
    check_fits(recipe(*ON_GPUS, *shards), 7_615_616_512, 79 * GIB, 1024 * GIB)


def test_an_engine_whose_weights_exceed_a_gpu_is_refused_and_one_that_exceeds_its_share_is_a_warning() -> None:
    shards = ("trainer.deepspeed.ranks=64", "trainer.deepspeed.zero_stage=3")
    large = recipe(*ON_GPUS, *shards)
    with pytest.raises(PlacementError, match=r"weights are 131 GiB a GPU.*larger rollout\.tensor_parallel_size"):
        check_fits(large, 70_553_706_496, 79 * GIB, 1024 * GIB)
    (warning,) = check_fits(large, 30_000_000_000, 79 * GIB, 1024 * GIB)
    assert "rollout.gpu_memory_utilization leaves it 40 GiB" in warning
    assert check_fits(large, 3_000_000_000, 79 * GIB, 1024 * GIB) == []


def test_a_card_of_unknown_size_is_believed() -> None:
    check_fits(recipe(*ON_GPUS), 7_615_616_512, None, 1024 * GIB)


def test_a_machine_without_gpus_holds_ranks_and_engines_together() -> None:
    two = ("trainer.deepspeed.ranks=2", "rollout.engines=2")
    check_fits(recipe(*two), 500_000_000, None, 24 * GIB)
    with pytest.raises(PlacementError, match=r"ranks and engines need at least \d+ GiB for 0\.7e9 weights"):
        check_fits(recipe(*two), 700_000_000, None, 24 * GIB)


def test_the_quickstart_is_not_refused_and_torch_is_not_asked() -> None:
    preflight(recipe())
    check_memory(recipe())
