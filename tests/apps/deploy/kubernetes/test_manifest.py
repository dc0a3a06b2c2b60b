"""A recipe as a KubeRay job: golden texts, and the fields that KubeRay documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rlhf.apps.deploy.kubernetes.manifest import RECIPE_FOLDER, KubernetesJob, kubernetes_manifest, load_for
from rlhf.errors import PlacementError
from rlhf.recipe.loading import load_recipe
from tests.warm.command_line import rlhf

HERE = Path(__file__).parent
GOLDEN = HERE / "32-nodes.yaml"
QUICKSTART = HERE.parents[3] / "recipes" / "quickstart.yaml"
SCHEMA = yaml.safe_load((HERE / "schema.yaml").read_text())
LAPTOP = KubernetesJob(
    name="quickstart", image="rlhf:0.1", nodes=1, cpus=4, gpus=0, memory="8Gi",
    claim="rlhf", secret="rlhf-ray-token", workspace="/workspace", retries=3,
)  # fmt: skip
CLUSTER = replace(LAPTOP, name="large", nodes=32, cpus=96, gpus=8, memory="1Ti", claim="team", workspace="/mnt/team")
GPUS = ("rollout.engines=64", "rollout.gpus_per_engine=1", "rollout.tensor_parallel_size=2",
        "trainer.deepspeed.ranks=128", "trainer.deepspeed.gpus_per_rank=1")  # fmt: skip


def rendered(job: KubernetesJob, *overrides: str) -> str:
    return kubernetes_manifest(load_for(job, QUICKSTART, overrides), job)


def without_recipe(job: KubernetesJob, *overrides: str) -> str:
    """The manifest but for the recipe, which changes with every setting that is added anywhere."""
    text = rendered(job, *overrides)
    start, end = text.index("  recipe.yaml: |"), text.index("---\n")
    return text[:start] + "  recipe.yaml: …\n" + text[end:]


def parts(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ConfigMap and the RayJob."""
    config, job = yaml.safe_load_all(text)
    return config, job


def test_the_job_is_the_golden_one() -> None:
    assert without_recipe(CLUSTER, *GPUS) == GOLDEN.read_text()


@pytest.mark.parametrize(("job", "overrides"), [(LAPTOP, ()), (CLUSTER, GPUS)], ids=["1 node", "32 nodes"])
def test_the_job_has_the_fields_that_kuberay_documents_and_no_others(
    job: KubernetesJob, overrides: tuple[str, ...]
) -> None:
    jsonschema.validate(parts(rendered(job, *overrides))[1], SCHEMA)


def test_the_pods_read_the_recipe_that_was_rendered(tmp_path: Path) -> None:
    config, job = parts(rendered(CLUSTER, *GPUS, "seed=7", "sampling.temperature=0.5"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config["data"]["recipe.yaml"])
    read = load_recipe(recipe).recipe
    expected = load_recipe(QUICKSTART, [*GPUS, "model.dtype=bfloat16", "seed=7", "sampling.temperature=0.5"]).recipe
    assert read.trainer == expected.trainer
    assert (read.seed, read.sampling.temperature, read.name) == (7, 0.5, "quickstart")
    assert read.run_dir == Path("/mnt/team/runs/quickstart"), "on the shared volume"
    assert read.model.cache_dir == "/mnt/team/models"
    assert f" {RECIPE_FOLDER}/recipe.yaml " in job["spec"]["entrypoint"]
    mounts = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "recipe", "mountPath": RECIPE_FOLDER, "readOnly": True} in mounts


def test_no_token_is_written_into_the_manifest() -> None:
    text = rendered(LAPTOP)
    assert "RAY_AUTH_TOKEN" not in text
    assert parts(text)[1]["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token", "secretName": "rlhf-ray-token"}


def test_nodes_that_are_too_small_are_refused_with_what_is_missing() -> None:
    with pytest.raises(PlacementError, match=r"128 learner x 1 GPU and 64 engine x 2 GPUs: 256 GPUs asked"):
        rendered(replace(CLUSTER, nodes=31), *GPUS)


def test_the_command_prints_the_manifest() -> None:
    ended = rlhf(
        "kubernetes", QUICKSTART, "seed=3", "--nodes", "2", "--cpus-per-node", "2", "--memory-per-node", "8Gi",
        "--image", "rlhf:0.1",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    config, job = parts(ended.stdout)
    jsonschema.validate(job, SCHEMA)
    assert job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 1
    assert yaml.safe_load(config["data"]["recipe.yaml"])["seed"] == 3
