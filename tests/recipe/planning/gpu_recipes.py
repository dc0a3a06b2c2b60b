"""The recipes for GPUs: the machine that each is for, and what its header says of its plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlhf.apps.cli.plan import planned
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.machines import GIB, machine_of
from rlhf.recipe.planning.processes import peak
from tests.end_to_end.running import ROOT

MACHINES = {
    "gsm8k_one_gpu": ("1xH100", 1),
    "lora_one_gpu": ("1xH100", 1),
    "math_7b_one_node": ("8xH100", 1),
    "math_32b_four_nodes": ("8xH100", 4),
    "moe_30b_a3b": ("8xH100", 4),
    "llama_70b_16_nodes": ("8xH100", 16),
    "long_context_64k": ("8xH100", 2),
}
NUMBER = r"([\d,.]+)"
SAID = re.compile(
    rf"# At most {NUMBER} GiB a rank and {NUMBER} GiB an engine's GPU; micro-batches of up "
    "to\n"
    rf"# {NUMBER} tokens fit, by the plan."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The figures of a header: GiB, tokens."""

    rank: float
    engine: float
    microbatch: float


def recipe_file(name: str) -> Path:
    return ROOT / "recipes" / f"{name}.yaml"


@cache
def plan_of(name: str, *overrides: str) -> tuple[Estimate, str]:
    """The recipe on its machine: the estimate, and what is wrong with it."""
    gpus, nodes = MACHINES[name]
    return planned(load_recipe(recipe_file(name), overrides).recipe, machine_of(gpus, nodes))


def header_of(name: str) -> Header:
    """The figures that the recipe's header says."""
    said = SAID.search(recipe_file(name).read_text())
    assert said, f"the header of {name} says no figures"
    rank, engine, microbatch = (float(number.replace(",", "")) for number in said.groups())
    return Header(rank=rank, engine=engine, microbatch=microbatch)


def figures_of(found: Estimate) -> Header:
    """The figures of a plan."""
    assert found.microbatch is not None
    return Header(
        rank=peak(found.learner, "device") / GIB,
        engine=peak(found.engines[0], "device") / GIB,
        microbatch=found.microbatch,
    )
