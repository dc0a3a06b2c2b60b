"""The jobs whose scripts are kept in `goldens/`. `python -m tests.deploy.rendered` writes them anew; read what changed
before you keep it."""

from __future__ import annotations

from pathlib import Path

from rlhf.deploy.slurm.job import NodeGroup, SlurmJob
from rlhf.deploy.slurm.render import render

GOLDENS = Path(__file__).parent / "goldens"


def job(main: NodeGroup, servers: NodeGroup | None = None, *, time: str | None = "1-00:00:00") -> SlurmJob:
    """A job in folders that no machine has."""
    return SlurmJob(
        name="gsm8k_grpo",
        recipe="recipes/gsm8k_grpo.yaml",
        overrides=("trainer.updates=200", "run.name=it's a run"),
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
    found = {}
    for nodes in (1, 2, 32):
        gpus = NodeGroup(nodes=nodes, gpus=8, partition="gpu")
        found[f"{nodes}_nodes"] = job(gpus)
        found[f"{nodes}_nodes_heterogeneous"] = job(gpus, NodeGroup(nodes=max(1, nodes // 8), cpus=32, partition="cpu"))
    found["2_nodes_without_gpus"] = job(NodeGroup(nodes=2, cpus=4), time=None)
    return found


def golden(name: str) -> Path:
    return GOLDENS / f"{name}.sbatch"


if __name__ == "__main__":
    for name, one in jobs().items():
        golden(name).write_text(render(one))
