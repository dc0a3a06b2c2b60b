"""Jobs, and the golden script of one. `python -m tests.apps.deploy.rendered` writes it anew; review the diff before
you commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlhf.apps.deploy.slurm.job import Container, NodeGroup, SlurmJob
from rlhf.apps.deploy.slurm.render import render

GOLDEN = Path(__file__).parent / "32_nodes.sbatch"


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
    """Jobs that have every line of the templates between them."""
    one, many = (NodeGroup(nodes=nodes, gpus=8, gpu_type="h100", partition="gpu") for nodes in (1, 32))
    sif = Container(image="/shared/images/rlhf.sif", mounts=("/data", "/scratch:/cache"))
    site = {"qos": "high", "reservation": "spring", "extra": ("--comment=mine", "-d singleton"), "interface": "ib0"}
    return {
        "pyxis": replace(job(one), container=Container(image="registry.lab#rlhf:0.1"), rlhf=Path("rlhf")),
        "without GPUs": job(NodeGroup(nodes=2, cpus=4, memory="64G", constraint="avx512&ib"), time=None),
        "heterogeneous": replace(
            job(many, NodeGroup(nodes=4, cpus=32, partition="cpu")), container=sif, rlhf=Path("rlhf"), **site
        ),
    }


if __name__ == "__main__":
    GOLDEN.write_text(render(jobs()["heterogeneous"]))
