"""Renders a KubeRay job from a recipe and the template `scripts/kubernetes/rayjob.yaml`: a pure function."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rlhf.apps.deploy.heartbeat import HEARTBEAT
from rlhf.cluster.roles import Resources, check_resources, role_table
from rlhf.errors import ConfigError
from rlhf.recipe.by_size import with_sizes
from rlhf.recipe.loading import LoadedRecipe, load_recipe
from rlhf.recipe.placement import PlacementTarget, placed
from rlhf.recipe.planning.machines import machine_of_job
from rlhf.recipe.workers import roles_of
from rlhf.runs.resolved import resolved_yaml

ROOT = Path(__file__).parents[4]
TEMPLATE = ROOT / "scripts" / "kubernetes" / "rayjob.yaml"
PINS = ROOT / "requirements" / "gpu.txt"
RECIPE_FOLDER = "/etc/rlhf"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob:
    """The resources of a Kubernetes job: `nodes` pods of one size, a volume mounted in all of them, a Secret."""

    name: str
    image: str
    nodes: int
    cpus: int
    gpus: int
    memory: str
    claim: str
    secret: str
    workspace: str
    retries: int


def load_for(job: KubernetesJob, recipe: Path, overrides: Sequence[str]) -> LoadedRecipe:
    """Return the recipe as the pods read it: all files that it writes are on the shared volume, and workers are placed
    on the nodes' GPUs, which count as those of 80 GB. Raises `ConfigError`, `PlacementError`."""
    shared = [f"model.cache_dir={job.workspace}/models", f"cluster.nodes={job.nodes}"]
    loaded = load_recipe(recipe, [*shared, *overrides])
    run = Path(job.workspace) / loaded.recipe.run_dir
    loaded = load_recipe(recipe, [*shared, *overrides, f"run.dir={run}"])
    target = PlacementTarget(machine=machine_of_job(job.nodes, job.gpus, job.cpus))
    model = loaded.recipe.model
    return with_sizes(placed(loaded, model, target), model)


def kubernetes_manifest(loaded: LoadedRecipe, job: KubernetesJob) -> str:
    """Return the ConfigMap with the recipe and the RayJob that trains it, as YAML. Raises `PlacementError` for too few
    or too small nodes."""
    roles = roles_of(loaded.recipe)
    check_resources(
        roles, [Resources(node=f"node-{index}", cpus=job.cpus, gpus=job.gpus) for index in range(job.nodes)]
    )
    if not TEMPLATE.is_file():
        raise ConfigError(f"{TEMPLATE} is missing: rlhf kubernetes needs a checkout of this repository")
    heartbeat = "\n".join(f'- {{name: {name}, value: "{value}"}}' for name, value in HEARTBEAT.items())
    entrypoint = ["rlhf", "train", f"{RECIPE_FOLDER}/recipe.yaml", "--address", "auto", "--resume"]
    return Template(TEMPLATE.read_text()).substitute(
        name=job.name,
        image=json.dumps(job.image),
        nodes=job.nodes, workers=job.nodes - 1, cpus=job.cpus, gpus=job.gpus, memory=job.memory,
        claim=job.claim, secret=job.secret, workspace=job.workspace, retries=job.retries,
        recipe_folder=RECIPE_FOLDER,
        entrypoint=json.dumps(shlex.join(entrypoint)),
        ray_version=next(line.removeprefix("ray==") for line in PINS.read_text().split() if line.startswith("ray==")),
        heartbeat=textwrap.indent(heartbeat, 16 * " "),
        roles=textwrap.indent(role_table(roles), "# "),
        recipe=textwrap.indent(resolved_yaml(loaded.recipe, loaded.origins), 4 * " ").rstrip("\n"),
    )  # fmt: skip
