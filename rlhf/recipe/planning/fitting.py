"""Find settings with which a recipe fits a machine, and the smallest machine that some settings fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rlhf.config import build, flatten, merge, parse_override
from rlhf.errors import ConfigError
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.machines import Machine, machine_of
from rlhf.recipe.schema import Recipe
from rlhf.trainer.credit.registry import adapter_layer

Changes = dict[str, Any]
"""Overrides of a recipe, by dotted key."""
EstimateOf = Callable[[Recipe, Machine], Estimate]
TURNS, RANKS, ENGINES = "cluster.placement", "trainer.deepspeed.ranks", "rollout.engines"
RANK_GPUS, ENGINE_GPUS = "trainer.deepspeed.gpus_per_rank", "rollout.gpus_per_engine"
SIZE, STAGE = "rollout.tensor_parallel_size", "trainer.deepspeed.zero_stage"
RECOMPUTE, SHARE = "model.gradient_checkpointing", "rollout.gpu_memory_utilization"
SIZES = (1, 2, 4, 8)
"""GPUs of an engine."""
SHARES = tuple(round(0.9 - 0.05 * step, 2) for step in range(17))
"""An engine's shares of a GPU, the largest first."""
NODE_CARDS, ENOUGH_CORES = 8, 1 << 20
CARD_SIZES, CARD_COUNTS = (24, 40, 48, 80, 141, 180), tuple(1 << power for power in range(9))
OFFLOADED: Changes = {STAGE: 3, "trainer.deepspeed.offload_optimizer": "cpu"}
ALL_OFFLOADED = OFFLOADED | {"trainer.deepspeed.offload_parameters": "cpu"}
HEAVY: tuple[Changes, ...] = ({}, {STAGE: 3}, OFFLOADED, ALL_OFFLOADED)
"""What the state of the learner may need, the fastest first."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Overrides of a recipe, and its plan with them."""

    changes: Changes
    found: Estimate


def with_shares(
    recipe: Recipe, changes: Changes, shares: Sequence[float], machine: Machine, estimate_of: EstimateOf
) -> Iterator[Tried]:
    """Iterate over a recipe with overrides and these shares of a GPU for an engine, none for its own, until one fits;
    over nothing if the recipe or its model refuses them."""
    with suppress(ConfigError):
        changed = with_changes(recipe, changes)
        for share in shares or [changed.rollout.gpu_memory_utilization]:
            rollout = changed.rollout.model_copy(update={"gpu_memory_utilization": share})
            found = estimate_of(changed.model_copy(update={"rollout": rollout}), machine)
            yield Tried(changes | ({SHARE: share} if shares else {}), found)
            if found.fits or found.placement:
                return


def taking_turns(cards: int, size: int) -> Changes:
    """Return ranks on `cards` GPUs, and engines of this size that take turns with them."""
    turns = {TURNS: "colocated", RANKS: cards, RANK_GPUS: 1, ENGINE_GPUS: 1}
    return turns | {ENGINES: cards // size, SIZE: size}


def changes_that_fit(recipe: Recipe, machine: Machine, estimate_of: EstimateOf) -> Changes | None:
    """Return few overrides with which the recipe fits, as far as GPUs and memory go; None if none do. All that share a
    card change together: placement, the engines' share, micro-batches, and what is offloaded."""
    machine = replace(machine, cores=ENOUGH_CORES)
    shares = (recipe.rollout.gpu_memory_utilization, *SHARES) if recipe.plays else ()
    held = dict(flatten(recipe.model_dump()))

    def fitting(*parts: Changes) -> Changes | None:
        changes = {key: value for part in parts for key, value in part.items()}
        tried = with_shares(recipe, changes, shares, machine, estimate_of)
        return next((one.changes for one in tried if one.found.fits), None)

    light = list(_light_changes(recipe, estimate_of(recipe, machine)))
    for heavy, placed in product(HEAVY, _placements(recipe, machine)):
        if (found := fitting(placed, *light, heavy)) is None:
            continue
        needed = light
        for change in reversed(light):
            fewer = [one for one in needed if one is not change]
            if (fits := fitting(placed, *fewer, heavy)) is not None:
                needed, found = fewer, fits
        return {key: value for key, value in found.items() if held.get(key) != value}
    return None


def smallest_machine(recipe: Recipe, machine: Machine, estimate_of: EstimateOf) -> tuple[Machine, Changes] | None:
    """Return the machine with the least GPU memory, from this one's up, that some settings fit, and these settings.

    It is this machine with more host memory, else one whose nodes have 128 GiB a card or as much as here."""
    here = machine.nodes * machine.cards * machine.card.memory if machine.card else 0
    larger = [replace(machine, host_memory=times * machine.host_memory) for times in (2, 4, 8) if machine.card]
    for size, count in sorted(product(CARD_SIZES, CARD_COUNTS), key=lambda one: (one[0] * one[1], one[1])):
        other = machine_of(f"{min(count, NODE_CARDS)}x{size}GB", max(count // NODE_CARDS, 1))
        if other.card and count * other.card.memory > here:
            larger.append(replace(other, host_memory=max(other.host_memory, machine.host_memory)))
    tried = ((one, changes_that_fit(recipe, one, estimate_of)) for one in larger)
    return next(((one, changes) for one, changes in tried if changes is not None), None)


def with_changes(recipe: Recipe, changes: Changes) -> Recipe:
    """Return the recipe with overrides. Raises `ConfigError` where it refuses them."""
    given = dict(parse_override(f"{key}={value}") for key, value in changes.items())
    values, _ = merge(("recipe", recipe.model_dump(mode="json", exclude_none=True)), ("changes", given))
    return build(Recipe, merge(("recipe", values), adapter_layer(values))[0])


def _light_changes(recipe: Recipe, found: Estimate) -> Iterator[Changes]:
    """Iterate over changes that take time but no host memory, the most useful first."""
    sequence, tokens = found.run.longest, found.run.learner.tokens
    yield {RECOMPUTE: True}
    while tokens // 2 >= sequence:
        tokens //= 2
        yield {"trainer.tokens_per_microbatch": tokens}
    if recipe.plays and sequence < (recipe.rollout.max_context_tokens or found.shape.context_tokens):
        yield {"rollout.max_context_tokens": sequence}


def _placements(recipe: Recipe, machine: Machine) -> Iterator[Changes]:
    """Iterate over the recipe's own placement, and over all cards with ranks that take turns with engines."""
    yield {}
    cards = machine.nodes * machine.cards
    if cards and not recipe.plays:
        yield {RANKS: cards, RANK_GPUS: 1}
    for size in SIZES if cards and recipe.plays else ():
        if size <= machine.cards and cards % size == 0:
            yield taking_turns(cards, size) | {"trainer.max_staleness": 0}
