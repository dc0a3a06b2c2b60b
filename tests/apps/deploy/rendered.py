"""The jobs whose scripts are kept in `goldens/`. `python -m tests.apps.deploy.rendered` writes them anew; review the
diff before you commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlhf.apps.deploy.slurm.job import Container, NodeGroup, SlurmJob
from rlhf.apps.deploy.slurm.render import render

GOLDENS = Path(__file__).parent / "goldens"


def job(main: NodeGroup, servers: NodeGroup | None = None, *, time: str | None = "1-00:00:00") -> SlurmJob:
    """A job in folders that no machine has."""
    return SlurmJob(
        name="gsm8k_grpo",
        recipe="name: gsm8k_grpo  # file name\nrun:\n  dir: it's $RUN\n",
        command="rlhf slurm recipes/gsm8k_grpo.yaml 'run.dir=a run'",
        run_dir=Path("/shared/runs/gsm8k grpo"),
        folder=Path("/shared/rlhf"),
        rlhf=Path("/shared/venv/bin/rlhf"),
        main=main,
        servers=servers,
        time=time,
        account="lab",
    )


def jobs() -> dict[str, SlurmJob]:
    """By the name of the golden file."""
    one, many = (NodeGroup(nodes=nodes, gpus=8, gpu_type="h100", partition="gpu") for nodes in (1, 32))
    sif = Container(image="/shared/images/rlhf.sif", mounts=("/data", "/scratch:/cache"))
    site = {"qos": "high", "reservation": "spring", "extra": ("--comment=mine", "-d singleton"), "interface": "ib0"}
    return {
        "1_nodes": replace(job(one), container=Container(image="registry.lab#rlhf:0.1"), rlhf=Path("rlhf")),
        "2_nodes_without_gpus": job(NodeGroup(nodes=2, cpus=4, memory="64G", constraint="avx512&ib"), time=None),
        "32_nodes_heterogeneous": replace(
            job(many, NodeGroup(nodes=4, cpus=32, partition="cpu")), container=sif, rlhf=Path("rlhf"), **site
        ),
    }


def golden(name: str) -> Path:
    return GOLDENS / f"{name}.sbatch"


if __name__ == "__main__":
    for name, one in jobs().items():
        golden(name).write_text(render(one))
