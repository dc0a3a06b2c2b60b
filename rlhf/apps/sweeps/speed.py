"""The settings that decide how fast a recipe is, and not what it learns, and the short trials that compare them."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.fitting import ENGINES, RANKS, SIZES, Changes, taking_turns, with_shares
from rlhf.recipe.planning.layout import PROMPT_TOKENS, SEQUENCES
from rlhf.recipe.planning.machines import Machine
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import engine_device, learner_device

SPEED = "mean seconds of an update"
"""The metric of `--goal speed`, without the first update, which warms up."""
MEASURED_UPDATES = 4
SHORT = (
    "trainer.eval_every=0", "trainer.save_every=0", "trainer.save_every_minutes=0", "data.eval=null", "run.loggers=[]",
    "run.show_replies=false", "run.max_restarts=0",
)  # fmt: skip
"""Overrides with which a trial does nothing but updates."""


def short_updates(recipe: Recipe) -> int:
    """Return the updates of a trial. The last ones do not count: the run saves then, and plays nothing ahead."""
    return 2 + MEASURED_UPDATES + recipe.trainer.max_staleness


def speed_axes(recipe: Recipe, machine: Machine) -> list[list[Changes]]:
    """Return other values of the settings that decide speed, a list for each kind of setting."""
    tokens, sequences = recipe.trainer.tokens_per_microbatch, recipe.rollout.max_sequences
    fewer = (sequences or SEQUENCES[engine_device(recipe)]) // 4
    return [
        [{"trainer.tokens_per_microbatch": count} for count in (4 * tokens, tokens // 4)],
        [{"rollout.max_sequences": fewer}] if recipe.plays else [],
        list(_splits(recipe, machine)) if recipe.plays else [],
    ]


def _splits(recipe: Recipe, machine: Machine) -> Iterator[Changes]:
    """Iterate over other numbers of engines and ranks: with the same cores, with GPUs that move from one to the other,
    and taking turns on all GPUs."""
    rollout, deepspeed = recipe.rollout, recipe.trainer.deepspeed
    engines, size, ranks = rollout.engines, rollout.tensor_parallel_size, deepspeed.ranks
    if not isinstance(engines, int) or not isinstance(size, int):
        return
    if engine_device(recipe) == learner_device(recipe) == "cpu":
        for count in (2 * engines, engines // 2):
            yield {ENGINES: count, "rollout.cpus_per_engine": rollout.cpus_per_engine * engines / max(count, 1)}
        for count in (2 * ranks, ranks // 2):
            yield {RANKS: count, "trainer.deepspeed.cpus_per_rank": deepspeed.cpus_per_rank * ranks / max(count, 1)}
        return
    if recipe.cluster.placement != "colocated":
        yield {ENGINES: engines + ranks // 2 // size, RANKS: ranks - ranks // 2}
        yield {ENGINES: engines // 2, RANKS: ranks + (engines - engines // 2) * size}
    if not recipe.trainer.max_staleness:
        others = [one for one in SIZES if one != size or recipe.cluster.placement != "colocated"]
        yield from (taking_turns(machine.nodes * machine.cards, one) for one in others)


def fits(recipe: Recipe, changes: Changes, machine: Machine) -> bool:
    """Whether a machine has the memory, cores and GPUs for a recipe with these changes, by the plan."""
    estimate_of = estimator(recipe, None, PROMPT_TOKENS, rough=True)
    return any(one.found.fits for one in with_shares(recipe, changes, (), machine, estimate_of))
