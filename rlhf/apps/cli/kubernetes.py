"""`rlhf kubernetes` prints a recipe as a job of the KubeRay operator, for `kubectl apply -f -`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from rlhf.apps.arguments import Overrides, RecipeFile


def kubernetes(
    recipe: RecipeFile,
    image: Annotated[str, typer.Option(help="Image built from the Dockerfile, as the cluster pulls it.")],
    cpus_per_node: Annotated[int, typer.Option(min=1, help="Cores of each node.")],
    memory_per_node: Annotated[str, typer.Option(metavar="QUANTITY", help="Memory of each node, for instance 64Gi.")],
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Pods, the head among them.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs of each node.")] = 0,
    claim: Annotated[str, typer.Option(help="Claim of a volume that all pods can write.")] = "rlhf",
    secret: Annotated[str, typer.Option(help="Secret with Ray's token, key auth_token.")] = "rlhf-ray-token",
    workspace: Annotated[str, typer.Option(help="Mount point of the volume and working directory.")] = "/workspace",
    name: Annotated[str | None, typer.Option(help="Name of the job; default: the recipe's.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="New clusters after a failure; each resumes.")] = 3,
) -> None:
    """Print a recipe as a KubeRay job."""
    from rlhf.apps.deploy.kubernetes.manifest import KubernetesJob, kubernetes_manifest, load_for

    job = KubernetesJob(
        name=name or re.sub(r"[^a-z0-9]+", "-", recipe.stem.lower()).strip("-"), image=image,
        nodes=nodes, cpus=cpus_per_node, gpus=gpus_per_node,
        memory=memory_per_node, claim=claim, secret=secret, workspace=workspace.rstrip("/"), retries=retries,
    )  # fmt: skip
    typer.echo(kubernetes_manifest(load_for(job, recipe, overrides or []), job), nl=False)
