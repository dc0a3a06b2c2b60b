"""The settings that decide how fast a recipe is, and not what it learns: which values of them are worth a trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from rlhf.recipe.planning.fitting import Changes, EstimateOf, with_shares
from rlhf.recipe.planning.machines import Machine
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import engine_device, learner_device

PLACEMENTS = 3
"""Placements that are tried, the quickest by the plan."""
FACTORS = (4.0, 0.25)
"""Of the recipe's micro-batches and sequences at once."""


def candidate_axes(recipe: Recipe, machine: Machine, estimate_of: EstimateOf) -> list[list[Changes]]:
    """Return placements, micro-batches and numbers of sequences that fit the machine, without the recipe's own."""

    def fitting(changes: Iterable[Changes]) -> list[Changes]:
        tried = [one for change in changes for one in with_shares(recipe, change, (), machine, estimate_of)]
        updates = [(one.found.times.update, one.changes) for one in tried if one.found.fits]
        return [change for _, change in sorted(updates, key=lambda one: one[0].low + one[0].high)]

    tokens = recipe.trainer.tokens_per_microbatch
    sequences = recipe.rollout.max_sequences or 256
    microbatches = [{"trainer.tokens_per_microbatch": f"{max(int(tokens * factor), 1)}"} for factor in FACTORS]
    together = [{"rollout.max_sequences": f"{max(int(sequences * factor), 1)}"} for factor in FACTORS[1:]]
    return [fitting(_placements(recipe, machine))[:PLACEMENTS], fitting(microbatches), fitting(together)]


def _placements(recipe: Recipe, machine: Machine) -> Iterator[Changes]:
    """Iterate over numbers of engines and ranks, each with its part of the cores, or of the cards that they share."""
    on_cpu = engine_device(recipe) == "cpu" and learner_device(recipe) == "cpu"
    own = (len(recipe.rollout.tensor_parallel_sizes), recipe.trainer.deepspeed.ranks)
    several = isinstance(recipe.rollout.tensor_parallel_size, tuple)
    if several or recipe.cluster.placement == "colocated" or not (on_cpu or machine.card):
        return
    places = machine.nodes * (machine.cores if on_cpu else machine.cards)
    counts = [1 << power for power in range(10) if 1 << power <= places]
    for engines, ranks in product(counts, counts):
        changes = {"rollout.engines": f"{engines}", "trainer.deepspeed.ranks": f"{ranks}"}
        if on_cpu:
            changes["rollout.cpus_per_engine"] = f"{_part(places, engines)}"
            changes["trainer.deepspeed.cpus_per_rank"] = f"{_part(places, ranks)}"
        if (engines, ranks) != own:
            yield changes


def _part(cores: int, workers: int) -> float:
    """Return the cores of one of so many workers that together reserve half of all."""
    part = cores / (2 * workers)
    return float(int(part)) if part >= 1 else part
