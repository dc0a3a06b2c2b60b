"""Deadlines that follow from a model's and a batch's size. A recipe's value wins.

The schema's deadlines suit a small model. Reading, moving and writing more weights takes longer. The rates are those of
slow hardware, so that only a hanging process passes a deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.models.model_files import parameters, tensor_shapes
from rlhf.recipe.loading import LoadedRecipe
from rlhf.recipe.model_configs import find_values
from rlhf.recipe.planning.rough_shape import decoder_sizes
from rlhf.recipe.schema import Recipe
from rlhf.trainer.config import TrainerConfig

ORIGIN = "the sizes of model and batch"
READ_RATE = WRITE_RATE = 100e6
"""Bytes/s of one reader or writer of a busy shared file system."""
SEND_RATE = 250e6
"""Bytes/s of a weight sync over a slow network."""
SECONDS_PER_TOKEN = 0.1
"""Time for one reply, in an engine that runs many at once."""
COMPUTE_RATE = 5e13
"""FLOP/s of a rank on a poorly used GPU."""


def with_sizes(loaded: LoadedRecipe) -> LoadedRecipe:
    """Return the recipe with larger values for the defaults that its sizes exceed."""
    recipe, origins = loaded.recipe, dict(loaded.origins)
    weights = parameter_count(recipe)
    for key, needed in deadlines(recipe, weights).items():
        if key not in origins and round(needed) > _value(recipe, key):
            recipe, origins[key] = _with(recipe, key, needed), ORIGIN
    return replace(loaded, recipe=recipe, origins=origins)


def deadlines(recipe: Recipe, weights: float) -> Mapping[str, float]:
    """Return the deadlines in seconds, by key, for a model of `weights` weights."""
    trainer, half = recipe.trainer, 2 * weights
    loading, saving = half / READ_RATE, saving_seconds(weights, trainer.deepspeed.ranks)
    return {
        "rollout.start_timeout_seconds": 300 + loading,
        "rollout.generate_timeout_seconds": SECONDS_PER_TOKEN * recipe.sampling.max_tokens,
        "rollout.weight_sync_timeout_seconds": 120 + half / SEND_RATE,
        "trainer.deepspeed.start_timeout_seconds": 300 + loading,
        "trainer.deepspeed.timeout_seconds": 600 + max(saving, _update_seconds(trainer, recipe, weights)),
    }


def saving_seconds(weights: float, ranks: int) -> float:
    """Return the seconds in which a checkpoint is written, at most: the model, and each rank's part of the state."""
    return (2 * weights + 12 * weights / ranks) / WRITE_RATE


def parameter_count(recipe: Recipe) -> float:
    """Return the number of weights of the recipe's model, without torch: exact for a folder, within some per cent from
    a `config.json`, and 0 for an unknown model or a broken folder, which `preflight` reports."""
    try:
        name, values = find_values(recipe.model)
        folder = Path(name).expanduser()
        shapes = tensor_shapes(folder) if recipe.model.path and folder.is_dir() else None
    except ModelError:
        return 0.0
    if shapes is not None:
        return float(parameters(shapes))
    return float(decoder_sizes(values).parameters) if values else 0.0


def _update_seconds(trainer: TrainerConfig, recipe: Recipe, weights: float) -> float:
    if not trainer.deepspeed.gpus_per_rank:
        return 0.0
    tokens = trainer.samples_per_update * (recipe.sampling.max_tokens + 512)
    passes = (4 * trainer.epochs + 2) * (2 if trainer.critic else 1)
    return 2 * weights * tokens * passes / (COMPUTE_RATE * trainer.deepspeed.ranks)


def _value(recipe: Recipe, key: str) -> float:
    part: object = recipe.model_dump(include={key.split(".")[0]})
    for name in key.split("."):
        assert isinstance(part, dict)
        part = part[name]
    return float(part) if isinstance(part, int | float) else 0.0


def _with(recipe: Recipe, key: str, needed: float) -> Recipe:
    part, *rest = key.split(".")
    value = round(needed)
    if part == "cluster":
        return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={rest[0]: value})})
    if part == "rollout":
        return recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={rest[0]: float(value)})})
    trainer = recipe.trainer
    deepspeed = trainer.deepspeed.model_copy(update={rest[1]: float(value)})
    return recipe.model_copy(update={"trainer": trainer.model_copy(update={"deepspeed": deepspeed})})
