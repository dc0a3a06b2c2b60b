"""Refuse a run whose weights, gradients and optimizer state alone exceed the memory, in milliseconds and without torch.
`rlhf plan` estimates everything else."""

from __future__ import annotations

import sys

import psutil

from rlhf.cluster.machine import this_machines_gpus
from rlhf.errors import PlacementError
from rlhf.recipe.by_size import parameter_count
from rlhf.recipe.planning.layout import EngineLayout, engine_layouts, learner_layout
from rlhf.recipe.planning.machines import GIB
from rlhf.recipe.planning.processes import least_state
from rlhf.recipe.schema import Recipe


def check_memory(recipe: Recipe) -> None:
    """Refuse a run that this machine cannot hold, and warn if an engine's share of a GPU is too small. Accept a run
    that joins a cluster, and a model of unknown size. Raises `PlacementError`."""
    parameters = round(parameter_count(recipe.model))
    if recipe.cluster.address or not parameters:
        return
    on_gpus = recipe.trainer.deepspeed.gpus_per_rank or recipe.rollout.gpus_per_engine
    smallest = min((gpu.bytes for gpu in this_machines_gpus()), default=0) if on_gpus else 0  # 0: a part (MIG) too
    for warning in check_fits(recipe, parameters, smallest or None, int(psutil.virtual_memory().total)):
        print(f"warning: {warning}", file=sys.stderr)


def check_fits(recipe: Recipe, parameters: int, card: int | None, host: int) -> list[str]:
    """Compare the least memory of ranks and engines with that of a card and this machine, in bytes; return warnings.
    Without a `card` compare only processes without GPUs. Raises `PlacementError`."""
    learner = learner_layout(recipe, {})
    engines = engine_layouts(recipe) if recipe.plays else ()
    rank, warnings = least_state(parameters, learner), []
    if learner.device == "cuda" and card is not None and rank > card:
        raise PlacementError(
            f"a rank needs at least {rank / GIB:.0f} GiB for the state of {parameters / 1e9:.1f}e9 weights "
            f"({learner.ranks} rank(s), ZeRO {learner.stage}), and a GPU here has {card / GIB:.0f} GiB; "
            "use more trainer.deepspeed.ranks with zero_stage: 3, or offload_optimizer: cpu; see rlhf plan"
        )
    for engine in engines:
        weights = _least_engine(parameters, engine)
        if engine.device == "cpu" or card is None or weights <= engine.utilisation * card:
            continue
        advice = "use a larger rollout.tensor_parallel_size"
        found = f"an engine's weights are {weights / GIB:.0f} GiB a GPU, and"
        if weights > card:
            raise PlacementError(f"{found} a GPU has {card / GIB:.0f} GiB; {advice}")
        share = engine.utilisation * card / GIB
        warnings.append(f"{found} rollout.gpu_memory_utilization leaves it {share:.0f} GiB; {advice}, or raise it")
    together = (learner.ranks * rank if learner.device == "cpu" else 0) + sum(
        engine.engines * engine.parallel * _least_engine(parameters, engine)
        for engine in engines
        if engine.device == "cpu"
    )
    if together > host:
        raise PlacementError(
            f"ranks and engines need at least {together / GIB:.0f} GiB for {parameters / 1e9:.1f}e9 weights, and this "
            f"machine has {host / GIB:.0f} GiB; use a smaller model, or GPUs (trainer.deepspeed.gpus_per_rank, "
            "rollout.gpus_per_engine)"
        )
    return warnings


def _least_engine(parameters: int, engine: EngineLayout) -> int:
    return parameters * engine.width // engine.parallel + (engine.cache_bytes if engine.device == "cpu" else 0)
