"""Choose where engines and ranks run, from the machine and the size of the model. What a recipe says wins."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rlhf.cluster.machine import this_machines_gpus
from rlhf.config import flatten
from rlhf.errors import ConfigError, PlacementError
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.models.model_files import Values
from rlhf.recipe.loading import LoadedRecipe
from rlhf.recipe.model_configs import find_values, model_values
from rlhf.recipe.planning.estimate import Estimate
from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.fitting import SHARE, EstimateOf, with_changes
from rlhf.recipe.planning.layout import PROMPT_TOKENS
from rlhf.recipe.planning.machines import GIB, Machine, here
from rlhf.recipe.preflight import check_heads
from rlhf.recipe.workers import ENGINE, LEARNER, learner_device, roles_of

ORIGIN = "this machine"
TURNS, RANKS, ENGINES = "cluster.placement", "trainer.deepspeed.ranks", "rollout.engines"
RANK_GPUS, ENGINE_GPUS = "trainer.deepspeed.gpus_per_rank", "rollout.gpus_per_engine"
SIZE, STAGE = "rollout.tensor_parallel_size", "trainer.deepspeed.zero_stage"
RECOMPUTE, DTYPE = "model.gradient_checkpointing", "model.dtype"
SHARES = tuple(round(0.9 - 0.05 * step, 2) for step in range(17))
"""An engine's shares of a GPU, the largest first."""
ENOUGH_SEQUENCES = 32
"""Sequences of full length at once, below which an engine is split over more GPUs where that is possible."""
OFFLOADED = {STAGE: 3, RECOMPUTE: True, "trainer.deepspeed.offload_optimizer": "cpu"}
PlacementValues = dict[str, Any]
"""Values by dotted key."""


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
    name, values = model_values(found, target.config)
    located = on_gpus.recipe.model_copy(update={"model": found})
    tried = chosen(on_gpus, machine, values, estimator(located, target.config, target.prompt_tokens, rough=True))
    if tried is None:
        return loaded
    if target.must_fit and not tried.found.fits:
        lacking = tried.found.placement or tried.found.shortages[0].described
        full = "" if target.machine else held_gpus()
        raise PlacementError(f"no placement of {name} fits {machine.described}: {lacking}{full}; see rlhf plan")
    return loaded.with_defaults(ORIGIN, {DTYPE: "bfloat16", **tried.choice})


def describe_placement(loaded: LoadedRecipe) -> str:
    """Return the values that follow from the machine; empty without any."""
    values = dict(flatten(loaded.recipe.model_dump(mode="json")))
    chosen = [(key, values[key]) for key, origin in loaded.origins.items() if origin == ORIGIN]
    return ", ".join(
        f"{key} {value:g}" if type(value) is float else f"{key} {str(value).lower()}" for key, value in chosen
    )


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


@dataclass(frozen=True, slots=True)
class Tried:
    """A placement and its plan."""

    choice: PlacementValues
    found: Estimate

    @property
    def is_roomy(self) -> bool:
        """Whether it fits, and each engine has room for enough sequences at once."""
        run = self.found.run
        engines = sum(layout.engines for layout in run.engines)
        enough = min(ENOUGH_SEQUENCES, -(-run.samples // max(engines, 1))) * run.longest
        return self.found.fits and all(tokens >= enough for tokens in self.found.cache_tokens)

    @property
    def lacking(self) -> int:
        return sum(short.needed - short.available for short in self.found.shortages)


def chosen(loaded: LoadedRecipe, machine: Machine, values: Values, estimate_of: EstimateOf) -> Tried | None:
    """Return the first placement that fits with room for enough sequences, else the first that fits, else the one that
    lacks least; None if the recipe's own values leave no choice.

    The order: the most GPUs, the smallest ZeRO stage, activations that are kept, the smallest engines. State is
    offloaded last, and a part of the GPUs is used where cores or host memory are too few for all."""
    held = dict(flatten(loaded.recipe.model_dump()))
    fitting: Tried | None = None
    nearest: Tried | None = None
    for choices in by_cards(loaded, machine):
        for choice in choices:
            if any(loaded.says(key) and held.get(key) != value for key, value in choice.items()):
                continue
            for tried in with_shares(loaded, choice, machine, values, estimate_of):
                if tried.is_roomy:
                    return tried
                fitting = fitting or (tried if tried.found.fits else None)
                nearest = min(nearest or tried, tried, key=lambda one: one.lacking)
        if fitting:
            break
    return fitting or nearest


def by_cards(loaded: LoadedRecipe, machine: Machine) -> Iterator[list[PlacementValues]]:
    """Iterate over numbers of GPUs: the placements on so many, with settings of the learner."""
    others = [role for role in roles_of(loaded.recipe) if not role.name.startswith((LEARNER, ENGINE))]
    cores = machine.nodes * machine.cores - sum(role.count * role.cpus for role in others)
    cards = machine.nodes * machine.cards - math.ceil(sum(role.count * role.gpus for role in others))
    cards = 1 if loaded.recipe.cluster.kind == "local" else cards
    while cards > 0:
        found = sorted(layouts(loaded, cards), key=lambda one: -one[RANKS] if one.get(TURNS) == "colocated" else 0)
        fewer = cores_of(loaded, cores / cards)
        yield [layout | learner | fewer for learner, layout in product(learners(loaded, cards), found)]
        cards //= 2


def learners(loaded: LoadedRecipe, cards: int) -> Iterator[PlacementValues]:
    """Iterate over settings of the ranks' memory, the quickest first."""
    stages: list[int] = [1, 2, 3] if cards > 1 else [0]
    again: list[bool | int] = [False, True]
    if loaded.says(STAGE):
        stages = [loaded.recipe.trainer.deepspeed.zero_stage]
    if loaded.says(RECOMPUTE):
        again = [loaded.recipe.model.gradient_checkpointing]
    yield from ({STAGE: stage, RECOMPUTE: recomputed} for stage, recomputed in product(stages, again))
    yield OFFLOADED
    yield OFFLOADED | {"trainer.deepspeed.offload_parameters": "cpu"}


def layouts(loaded: LoadedRecipe, cards: int) -> Iterator[PlacementValues]:
    """Iterate over numbers of ranks and engines, the smallest engines first. They take turns on all cards; where the
    learner trains on older samples, or the recipe says so, each has a part of them, at first the half."""
    recipe, rollout, ranks = loaded.recipe, loaded.recipe.rollout, loaded.recipe.trainer.deepspeed.ranks
    team = recipe.trainer.deepspeed.sequence_parallel
    if not recipe.plays:
        yield {RANKS: ranks if loaded.says(RANKS) else cards // team * team, RANK_GPUS: 1}
        return
    both = {RANK_GPUS: 1, ENGINE_GPUS: 1}
    listed = isinstance(rollout.tensor_parallel_size, tuple)
    if listed or not isinstance(rollout.engines, int):
        most = max(rollout.tensor_parallel_sizes) * (0 if isinstance(rollout.engines, int) else rollout.engines.max)
        yield both | {TURNS: "separate", RANKS: cards - max(sum(rollout.tensor_parallel_sizes), most)}
        return
    apart = recipe.cluster.placement == "separate" if loaded.says(TURNS) else recipe.trainer.max_staleness > 0
    sizes = rollout.tensor_parallel_sizes[:1] if loaded.says(SIZE) else [1, 2, 4, 8]
    for size in sizes:
        unit, engines = math.lcm(size, team), rollout.engines if loaded.says(ENGINES) else 0
        if apart:
            counts = [cards - engines * size] if engines else [cards * part // 4 // team * team for part in (2, 3, 1)]
        else:
            counts = [engines * size or cards // unit * unit]
        for count in [ranks] if loaded.says(RANKS) else counts:
            made = engines or (cards - count if apart else count) // size
            yield both | {TURNS: "separate" if apart else "colocated", RANKS: count, ENGINES: made, SIZE: size}
    if apart and cards == 1:
        yield {RANK_GPUS: 0.5, ENGINE_GPUS: 0.5, TURNS: "separate", RANKS: 1, ENGINES: 1, SIZE: 1}


def cores_of(loaded: LoadedRecipe, cores: float) -> PlacementValues:
    """Return smaller shares of cores for ranks and engines, where a card has too few for the usual ones."""
    recipe, share = loaded.recipe, math.floor(100 * cores / (2 if loaded.recipe.plays else 1)) / 100
    usual = {"trainer.deepspeed.cpus_per_rank": recipe.trainer.deepspeed.cpus_per_rank}
    usual |= {"rollout.cpus_per_engine": recipe.rollout.cpus_per_engine} if recipe.plays else {}
    return {key: share for key, now in usual.items() if 0 < share < now and not loaded.says(key)}


def with_shares(
    loaded: LoadedRecipe, choice: PlacementValues, machine: Machine, values: Values, estimate_of: EstimateOf
) -> Iterator[Tried]:
    """Iterate over a placement with an engine's shares of a GPU, until one fits; over none if the recipe refuses it."""
    try:
        recipe = with_changes(loaded.recipe, {key: str(value) for key, value in choice.items()})
        check_heads(recipe, values)
    except ConfigError:
        return
    if not recipe.plays or loaded.says(SHARE):
        yield Tried(choice, estimate_of(recipe, machine))
        return
    for share in SHARES:
        rollout = recipe.rollout.model_copy(update={"gpu_memory_utilization": share})
        tried = Tried(choice | {SHARE: share}, estimate_of(recipe.model_copy(update={"rollout": rollout}), machine))
        yield tried
        if tried.found.fits:
            return
