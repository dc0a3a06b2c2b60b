"""Find settings with which a recipe fits a machine, and the smallest machine that some settings fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from rlhf.config import build, flatten, merge, parse_override
from rlhf.errors import ConfigError
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.machines import Machine, machine_of
from rlhf.recipe.schema import Recipe
from rlhf.trainer.algorithms.registry import adapter_layer

Changes = dict[str, str]
"""Overrides of a recipe."""
EstimateOf = Callable[[Recipe, Machine], Estimate]
SHARE = "rollout.gpu_memory_utilization"
SHARES = [round(0.95 - 0.05 * step, 2) for step in range(19)]
NODE_CARDS, ENOUGH_CORES = 8, 1 << 20
CARD_SIZES, CARD_COUNTS = (24, 40, 48, 80, 141, 180), tuple(1 << power for power in range(9))
_SHARDED: Changes = {"trainer.deepspeed.zero_stage": "3"}
_OFFLOADED = {**_SHARDED, "trainer.deepspeed.offload_optimizer": "cpu"}
HEAVY: tuple[Changes, ...] = ({}, _SHARDED, _OFFLOADED, {**_OFFLOADED, "trainer.deepspeed.offload_parameters": "cpu"})
"""What the state of the learner may need, the fastest first."""


def changes_that_fit(recipe: Recipe, machine: Machine, estimate_of: EstimateOf) -> Changes | None:
    """Return few overrides with which the recipe fits, as far as GPUs and memory go; None if none do.

    All that share a card change together: placement, the engines' share, micro-batches, and what is offloaded.
    """
    machine = replace(machine, cores=ENOUGH_CORES)
    light = list(_light_changes(recipe, estimate_of(recipe, machine)))
    held = dict(flatten(recipe.model_dump(mode="json")))
    for heavy, placed in product(HEAVY, _placements(recipe, machine)):
        found = _with_share(recipe, (placed, *light, heavy), machine, estimate_of)
        if found is None:
            continue
        needed = light
        for change in reversed(light):
            fewer = [one for one in needed if one is not change]
            if (fits := _with_share(recipe, (placed, *fewer, heavy), machine, estimate_of)) is not None:
                needed, found = fewer, fits
        return {key: value for key, value in found.items() if held.get(key) != parse_override(f"{key}={value}")[1]}
    return None


def smallest_machine(recipe: Recipe, machine: Machine, estimate_of: EstimateOf) -> tuple[Machine, Changes] | None:
    """Return the machine with the least GPU memory, from this one's up, that some settings fit, and these settings.

    It is this machine with more host memory, else one whose nodes have 128 GiB a card or as much as here."""
    for larger in _larger_machines(machine):
        changes = changes_that_fit(recipe, larger, estimate_of)
        if changes is not None:
            return larger, changes
    return None


def _larger_machines(machine: Machine) -> Iterator[Machine]:
    here = machine.nodes * machine.cards * machine.card.memory if machine.card else 0
    for times in (2, 4, 8) if machine.card else ():
        yield replace(machine, host_memory=times * machine.host_memory)
    for size, count in sorted(product(CARD_SIZES, CARD_COUNTS), key=lambda one: (one[0] * one[1], one[1])):
        larger = machine_of(f"{min(count, NODE_CARDS)}x{size}GB", max(count // NODE_CARDS, 1))
        if larger.card and count * larger.card.memory > here:
            yield replace(larger, host_memory=max(larger.host_memory, machine.host_memory))


def with_changes(recipe: Recipe, changes: Mapping[str, str]) -> Recipe:
    """Return the recipe with overrides. Raises `ConfigError` where it refuses them."""
    given = dict(parse_override(f"{key}={value}") for key, value in changes.items())
    values, _ = merge(("recipe", recipe.model_dump(mode="json", exclude_none=True)), ("changes", given))
    return build(Recipe, merge(("recipe", values), adapter_layer(values))[0])


def _light_changes(recipe: Recipe, found: Estimate) -> Iterator[Changes]:
    """Iterate over changes that take time but no host memory, the most useful first."""
    sequence, tokens = found.run.longest, found.run.learner.tokens
    yield {"model.gradient_checkpointing": "true"}
    while tokens // 2 >= sequence:
        tokens //= 2
        yield {"trainer.tokens_per_microbatch": str(tokens)}
    if recipe.plays and sequence < (recipe.rollout.max_context_tokens or found.shape.context_tokens):
        yield {"rollout.max_context_tokens": str(sequence)}


def _placements(recipe: Recipe, machine: Machine) -> Iterator[Changes]:
    """Iterate over the recipe's own placement, and over all cards with ranks that take turns with engines."""
    yield {}
    cards = machine.nodes * machine.cards
    if not cards:
        return
    ranks = {"trainer.deepspeed.ranks": str(cards), "trainer.deepspeed.gpus_per_rank": "1"}
    if not recipe.plays:
        yield ranks
        return
    turns = {"cluster.placement": "colocated", "trainer.max_staleness": "0", "rollout.gpus_per_engine": "1"}
    for size in (1, 2, 4, 8):
        if size <= machine.cards and cards % size == 0:
            engines = {"rollout.engines": str(cards // size), "rollout.tensor_parallel_size": str(size)}
            yield {**turns, **ranks, **engines}


def _with_share(recipe: Recipe, parts: Sequence[Changes], machine: Machine, estimate_of: EstimateOf) -> Changes | None:
    """Return all changes, with a share of a GPU for engines if theirs does not fit; None if none does."""
    changes = {key: value for part in parts for key, value in part.items()}
    try:
        changed = with_changes(recipe, changes)
    except ConfigError:
        return None
    rollout = changed.rollout
    for share in (rollout.gpu_memory_utilization, *(SHARES if recipe.plays else ())):
        shared = rollout.model_copy(update={"gpu_memory_utilization": share})
        if estimate_of(changed.model_copy(update={"rollout": shared}), machine).fits:
            return changes if share == rollout.gpu_memory_utilization else {**changes, SHARE: str(share)}
    return None
