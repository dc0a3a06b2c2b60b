"""Choose where engines and ranks run, from the machine and the size of the model. What a recipe says wins."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rlhf.cluster.machine import this_machines_gpus
from rlhf.config import flatten, shown_value
from rlhf.errors import PlacementError
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.recipe.loading import LoadedRecipe
from rlhf.recipe.model_configs import find_values
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.fitting import (
    ALL_OFFLOADED,
    ENGINE_GPUS,
    ENGINES,
    OFFLOADED,
    RANK_GPUS,
    RANKS,
    RECOMPUTE,
    SHARE,
    SHARES,
    SIZE,
    SIZES,
    STAGE,
    TURNS,
    Changes,
    EstimateOf,
    Tried,
    taking_turns,
    with_shares,
)
from rlhf.recipe.planning.layout import PROMPT_TOKENS
from rlhf.recipe.planning.machines import GIB, Machine, here
from rlhf.recipe.workers import ENGINE, LEARNER, learner_device, roles_of

ORIGIN = "this machine"
DTYPE = "model.dtype"
ENOUGH_SEQUENCES = 32
"""Sequences of full length at once, below which an engine is split over more GPUs where that is possible."""


@dataclass(frozen=True, slots=True)
class PlacementTarget:
    """The machine of a run, None for this one. A plan may name a `config.json`, and what does not fit need not fail."""

    machine: Machine | None = None
    config: Path | None = None
    prompt_tokens: int = PROMPT_TOKENS
    must_fit: bool = True


def placed(loaded: LoadedRecipe, model: ModelConfig, target: PlacementTarget) -> LoadedRecipe:
    """Return the recipe of a `model` with a placement on the GPUs of a machine, unless it says itself which workers
    have GPUs. Nothing changes without GPUs. Raises `ModelError`, and `PlacementError` if nothing fits."""
    recipe = loaded.recipe
    if all(map(loaded.says, [RANK_GPUS, *([ENGINE_GPUS] if recipe.plays else [])])):
        precise = loaded.says(DTYPE) or learner_device(recipe) == "cpu"
        return loaded if precise else loaded.with_defaults(ORIGIN, {DTYPE: "bfloat16"})
    # In a cluster all nodes count as equal to this one.
    machine = target.machine or replace(here(), nodes=recipe.cluster.nodes if recipe.cluster.address else 1)
    if machine.card is None:
        return loaded
    on_gpus = loaded.with_defaults(ORIGIN, {DTYPE: "bfloat16"})
    found = (fetched(model) if target.must_fit else model).model_copy(update={"dtype": on_gpus.recipe.model.dtype})
    located = on_gpus.recipe.model_copy(update={"model": found})
    tried = chosen(on_gpus, machine, estimator(located, target.config, target.prompt_tokens, rough=True))
    if tried is None:
        return loaded
    if target.must_fit and not tried.found.fits:
        lacking = tried.found.placement or tried.found.shortages[0].described
        full = "" if target.machine else held_gpus()
        raise PlacementError(
            f"no placement of {tried.found.shape.name} fits {machine.described}: {lacking}{full}; see rlhf plan"
        )
    return loaded.with_defaults(ORIGIN, {DTYPE: "bfloat16", **tried.changes})


def describe_placement(loaded: LoadedRecipe) -> list[tuple[str, str]]:
    """Return a label and the values that follow from the machine; nothing without any."""
    values = dict(flatten(loaded.recipe.model_dump(mode="json")))
    found = [key for key, origin in loaded.origins.items() if origin == ORIGIN]
    return [(ORIGIN, ", ".join(f"{key} {shown_value(values[key])}" for key in found))] if found else []


def held_gpus() -> str:
    """Say which GPUs of this machine other processes hold, and who they are."""
    return "".join(
        f"; GPU {gpu.index} ({gpu.name}) has {(gpu.bytes - gpu.held) / GIB:.1f} of {gpu.bytes / GIB:.1f} GiB free, for "
        f"{gpu.holders or 'a process that cannot be seen here'} holds the rest: end it, or hide the GPU "
        "(CUDA_VISIBLE_DEVICES)"
        for gpu in this_machines_gpus()
        if gpu.held
    )


def fetched(model: ModelConfig) -> ModelConfig:
    """Fetch the `config.json` of a hub's model that this machine does not know. Return the model, or a small one in the
    place of one that the hub does not give."""
    name, values = find_values(model)
    if values is not None:
        return model
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(name, "config.json")
    except (OSError, ValueError) as error:
        print(
            f"warning: {name} has no config.json here, and the hub gives none ({type(error).__name__}): the placement "
            "is that of a small model",
            file=sys.stderr,
        )
        return ModelConfig(tiny=TinyModelConfig())
    return model


def is_roomy(found: Estimate) -> bool:
    """Whether a run fits, and each engine has room for enough sequences at once."""
    engines = sum(layout.engines for layout in found.run.engines)
    enough = min(ENOUGH_SEQUENCES, -(-found.run.samples // max(engines, 1))) * found.run.longest
    return found.fits and all(tokens >= enough for tokens in found.cache_tokens)


def chosen(loaded: LoadedRecipe, machine: Machine, estimate_of: EstimateOf) -> Tried | None:
    """Return the first placement that fits with room for enough sequences, else the first that fits, else the one that
    lacks least; None if the recipe's own values leave no choice.

    The order: the most GPUs, the smallest ZeRO stage, activations that are kept, the smallest engines. State is
    offloaded last, and a part of the GPUs is used where cores or host memory are too few for all."""
    held = dict(flatten(loaded.recipe.model_dump()))
    shares = SHARES if loaded.recipe.plays and not loaded.says(SHARE) else ()
    tried: list[Tried] = []
    for choices in by_cards(loaded, machine):
        for choice in choices:
            if any(loaded.says(key) and held.get(key) != value for key, value in choice.items()):
                continue
            for one in with_shares(loaded.recipe, choice, shares, machine, estimate_of):
                if is_roomy(one.found):
                    return one
                tried.append(one)
        if fitting := [one for one in tried if one.found.fits]:
            return fitting[0]
    return min(tried, key=lambda one: one.found.lacking, default=None)


def by_cards(loaded: LoadedRecipe, machine: Machine) -> Iterator[list[Changes]]:
    """Iterate over numbers of GPUs: the placements on that many, with settings of the learner."""
    others = [role for role in roles_of(loaded.recipe) if not role.name.startswith((LEARNER, ENGINE))]
    cores = machine.nodes * machine.cores - sum(role.count * role.cpus for role in others)
    cards = machine.nodes * machine.cards - math.ceil(sum(role.count * role.gpus for role in others))
    cards = 1 if loaded.recipe.cluster.kind == "local" else cards
    while cards > 0:
        found = sorted(layouts(loaded, cards), key=lambda one: -one[RANKS] if one.get(TURNS) == "colocated" else 0)
        fewer = cores_of(loaded, cores / cards)
        yield [layout | learner | fewer for learner, layout in product(learners(loaded, cards), found)]
        cards //= 2


def learners(loaded: LoadedRecipe, cards: int) -> Iterator[Changes]:
    """Iterate over settings of the ranks' memory, the quickest first."""
    own = loaded.recipe.trainer.deepspeed.zero_stage
    stages = [own] if loaded.says(STAGE) else [1, 2, 3] if cards > 1 else [0]
    again = [loaded.recipe.model.gradient_checkpointing] if loaded.says(RECOMPUTE) else [False, True]
    yield from ({STAGE: stage, RECOMPUTE: recomputed} for stage, recomputed in product(stages, again))
    yield from (offloaded | {RECOMPUTE: again[-1]} for offloaded in (OFFLOADED, ALL_OFFLOADED))


def layouts(loaded: LoadedRecipe, cards: int) -> Iterator[Changes]:
    """Iterate over numbers of ranks and engines, the smallest engines first. They take turns on all cards; where the
    learner trains on older samples, or several policies, or the recipe says so, each has a part of them, at first the
    half."""
    recipe, rollout, ranks = loaded.recipe, loaded.recipe.rollout, loaded.recipe.trainer.deepspeed.ranks
    team, all_sizes = recipe.trainer.deepspeed.sequence_parallel, rollout.tensor_parallel_sizes
    if not recipe.plays:
        yield {RANKS: ranks if loaded.says(RANKS) else cards // team * team, RANK_GPUS: 1}
        return
    apart = {TURNS: "separate", RANK_GPUS: 1, ENGINE_GPUS: 1}
    if isinstance(rollout.tensor_parallel_size, tuple):
        yield apart | {RANKS: cards - sum(all_sizes)}
        return
    apt = not recipe.trainer.max_staleness and not recipe.policies
    turns = recipe.cluster.placement == "colocated" if loaded.says(TURNS) else apt
    engines = rollout.engines if loaded.says(ENGINES) else 0
    for size in all_sizes[:1] if loaded.says(SIZE) else SIZES:
        if turns:
            unit = math.lcm(size, team)
            yield taking_turns(ranks if loaded.says(RANKS) else engines * size or cards // unit * unit, size)
            continue
        counts = [cards - engines * size] if engines else [cards * part // 4 // team * team for part in (2, 3, 1)]
        for count in [ranks] if loaded.says(RANKS) else counts:
            yield apart | {RANKS: count, ENGINES: engines or (cards - count) // size, SIZE: size}
    if not turns and cards == 1:
        yield apart | {RANK_GPUS: 0.5, ENGINE_GPUS: 0.5, RANKS: 1, ENGINES: 1, SIZE: 1}


def cores_of(loaded: LoadedRecipe, cores: float) -> Changes:
    """Return smaller shares of cores for ranks and engines, where a card has too few for the usual ones."""
    recipe, share = loaded.recipe, math.floor(100 * cores / (2 if loaded.recipe.plays else 1)) / 100
    usual = {"trainer.deepspeed.cpus_per_rank": recipe.trainer.deepspeed.cpus_per_rank}
    usual |= {"rollout.cpus_per_engine": recipe.rollout.cpus_per_engine} if recipe.plays else {}
    return {key: share for key, now in usual.items() if 0 < share < now and not loaded.says(key)}
