"""The plans that are kept as text: recipes over clusters of many sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.cluster.described import describe
from rlhf.cluster.plan import plan
from rlhf.cluster.resources import Resources, Role
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.workers import roles_of

GOLDENS = Path(__file__).with_name("goldens")
QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recipe's settings over nodes. `title` is what a person reads first."""

    name: str
    title: str
    settings: Mapping[str, Any]
    nodes: tuple[Resources, ...]

    def text(self) -> str:
        """The golden file: the title, the recipe's settings, and the plan."""
        settings = "\n".join(f"  {key}={value}" for key, value in self.settings.items())
        return f"{self.title}\n{settings}\n\n{describe(plan(self.roles(), self.nodes))}\n"

    def roles(self) -> tuple[Role, ...]:
        return roles_of(load_recipe(QUICKSTART, [f"{key}={value}" for key, value in self.settings.items()]).recipe)

    @property
    def file(self) -> Path:
        return GOLDENS / f"{self.name}.txt"


def gpu_nodes(count: int, gpus: int = 8, first: int = 1) -> tuple[Resources, ...]:
    return tuple(Resources(node=f"gpu{at:03}", cpus=96, gpus=gpus) for at in range(first, first + count))


def cpu_nodes(count: int, cpus: int = 64) -> tuple[Resources, ...]:
    return tuple(Resources(node=f"cpu{at:03}", cpus=cpus) for at in range(1, count + 1))


def halves(nodes: int, learners: str) -> dict[str, Any]:
    """Half of the GPUs learn, the other half serves in engines of 4."""
    return {
        "cluster.learner_placement": learners,
        "trainer.deepspeed.ranks": 4 * nodes,
        "trainer.deepspeed.gpus_per_rank": 1,
        "trainer.deepspeed.cpus_per_rank": 4,
        "rollout.engines": nodes,
        "rollout.tensor_parallel_size": 4,
        "rollout.gpus_per_engine": 1,
        "rollout.cpus_per_engine": 2,
    }


def of_gpus(nodes: int, learners: str) -> Case:
    return Case(
        name=f"{nodes:03}_nodes_{learners}",
        title=f"{nodes} x (96 cores, 8 GPUs), learners {learners}",
        settings=halves(nodes, learners),
        nodes=gpu_nodes(nodes),
    )


MIXED = Case(
    name="heterogeneous",
    title="4 x (96 cores, 8 GPUs), 2 x (96 cores, 4 GPUs), 2 x (64 cores)",
    settings=halves(4, "pack")
    | {
        "environment.environment": "recipes.tasks.tictactoe:TicTacToe",
        "environment.servers": 40,
        "environment.cpus_per_server": 4,
        "reward.kind": "environment",
    },
    nodes=(*gpu_nodes(4), *gpu_nodes(2, gpus=4, first=5), *cpu_nodes(2)),
)
TWO_SMALL = Case(
    name="quickstart_on_two_nodes",
    title="2 x (2 cores), the quickstart with two ranks of a core",
    settings={"trainer.deepspeed.ranks": 2, "trainer.deepspeed.cpus_per_rank": 1},
    nodes=cpu_nodes(2, cpus=2),
)
TWO_SMALL_SPREAD = Case(
    name="quickstart_spread_over_two_nodes",
    title="2 x (2 cores), the quickstart with two ranks of a core, one on each",
    settings={**TWO_SMALL.settings, "cluster.learner_placement": "spread"},
    nodes=cpu_nodes(2, cpus=2),
)
COLOCATED = Case(
    name="colocated_on_four_nodes",
    title="4 x (96 cores, 8 GPUs), 32 ranks, and 16 engines of 2 GPUs on those of the ranks",
    settings=halves(4, "spread")
    | {
        "cluster.placement": "colocated",
        "trainer.deepspeed.ranks": 32,
        "rollout.engines": 16,
        "rollout.tensor_parallel_size": 2,
    },
    nodes=gpu_nodes(4),
)
CASES = (
    *(of_gpus(nodes, learners) for nodes in SIZES for learners in ("pack", "spread")),
    MIXED,
    TWO_SMALL,
    TWO_SMALL_SPREAD,
    COLOCATED,
)
