"""The job of a recipe: its GPUs, its notice before the time limit, and the recipe as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlhf.apps.deploy.kubernetes.manifest import load_for
from rlhf.apps.deploy.slurm.job import NodeGroup, SlurmJob
from rlhf.apps.deploy.slurm.submit import job_of
from tests.apps.deploy.kubernetes.test_manifest import CLUSTER
from tests.end_to_end.running import QUICKSTART

SEVEN = "model: {path: Qwen/Qwen2.5-7B-Instruct}\ndata: {train: {path: owner/rows}}\nsampling: {max_tokens: 8192}\n"


def made(recipe: Path, main: NodeGroup, *overrides: str, signal: int | None = None) -> SlurmJob:
    return job_of(recipe, overrides, main=main, servers=None, name=None, container=None, warn_seconds=signal)


@pytest.mark.parametrize("gpu_type", [None, "h100"])
def test_a_recipe_without_gpus_uses_those_of_the_job_and_is_copied_with_what_follows(
    tmp_path: Path, gpu_type: str | None
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SEVEN)
    job = made(file, NodeGroup(nodes=2, gpus=8, gpu_type=gpu_type), "trainer.updates=7")
    assert job.use == "uses 16 of 16 GPUs"
    copied = yaml.safe_load(job.recipe)
    assert (copied["name"], copied["trainer"]["updates"], copied["trainer"]["deepspeed"]["ranks"]) == ("mine", 7, 16)
    assert "# this machine" in job.recipe
    assert copied["cluster"]["address"] is None


def test_the_notice_is_as_long_as_an_update_and_a_save_by_the_plan(tmp_path: Path) -> None:
    """300 s for updates of 800 s: nothing could be saved in time."""
    file = tmp_path / "mine.yaml"
    file.write_text(SEVEN)
    large = ("trainer.groups_per_update=256", "trainer.group_size=16")
    assert made(file, NodeGroup(nodes=1, gpus=8), *large).warn_seconds > 800
    assert made(file, NodeGroup(nodes=1, gpus=8), *large, signal=60).warn_seconds == 60
    assert made(QUICKSTART, NodeGroup(nodes=1)).warn_seconds == 300


def test_pods_use_the_gpus_of_their_nodes() -> None:
    recipe = load_for(CLUSTER, QUICKSTART, ()).recipe
    assert (recipe.trainer.deepspeed.ranks, recipe.rollout.engines, recipe.cluster.placement) == (256, 256, "colocated")
