"""Deadlines by the sizes of model and batch; those of the schema suit a small model, and a recipe's own win. The
rates are those of slow hardware, so that only a hanging process passes a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlhf.config import flatten
from rlhf.errors import ModelError
from rlhf.models.config import ModelConfig
from rlhf.models.model_files import parameters, tensor_shapes
from rlhf.recipe.loading import LoadedRecipe
from rlhf.recipe.model_configs import find_values
from rlhf.recipe.planning.known_shapes import rough_model
from rlhf.recipe.schema import Recipe

ORIGIN = "the sizes of model and batch"
READ_RATE = WRITE_RATE = 100e6
"""Bytes/s of one reader or writer of a busy shared file system."""
SEND_RATE = 250e6
"""Bytes/s of a weight sync over a slow network."""
SECONDS_PER_TOKEN = 0.1
"""Time for one of many concurrent replies of an engine."""
COMPUTE_RATE = 5e13
"""FLOP/s of a rank on a poorly used GPU."""


def with_sizes(loaded: LoadedRecipe, model: ModelConfig) -> LoadedRecipe:
    """Return the recipe of a `model` with larger values for the defaults that its sizes exceed."""
    needed = deadlines(loaded.recipe, parameter_count(model))
    held = dict(flatten(loaded.recipe.model_dump()))
    larger = {
        key: round(seconds) for key, seconds in needed.items() if not loaded.says(key) and round(seconds) > held[key]
    }
    return loaded.with_defaults(ORIGIN, larger) if larger else loaded


def deadlines(recipe: Recipe, weights: float) -> Mapping[str, float]:
    """Return the deadlines in seconds, by key, for a model of `weights` weights."""
    half, saving = 2 * weights, saving_seconds(weights, recipe.trainer.deepspeed.ranks)
    loading = half / READ_RATE
    return {
        "rollout.start_timeout_seconds": 300 + loading,
        "rollout.generate_timeout_seconds": SECONDS_PER_TOKEN * recipe.sampling.max_tokens,
        "rollout.weight_sync_timeout_seconds": 120 + half / SEND_RATE,
        "trainer.deepspeed.start_timeout_seconds": 300 + loading,
        "trainer.deepspeed.timeout_seconds": 600 + max(saving, update_seconds(recipe, weights)),
    }


def saving_seconds(weights: float, ranks: int) -> float:
    """Return the seconds in which a checkpoint is written, at most: the model, and each rank's part of the state."""
    return (2 * weights + 12 * weights / ranks) / WRITE_RATE


def parameter_count(model: ModelConfig) -> float:
    """Return the number of weights of a model, without torch: exact for a folder, within some per cent from a
    `config.json`, and 0 for an unknown model or a broken folder, which `preflight` reports."""
    try:
        name, values = find_values(model)
        folder = Path(name).expanduser()
        shapes = tensor_shapes(folder) if model.path and folder.is_dir() else None
    except ModelError:
        return 0.0
    if shapes is not None:
        return float(parameters(shapes))
    return float(rough_model(name, values).shape.parameters) if values else 0.0


def update_seconds(recipe: Recipe, weights: float) -> float:
    """Return the seconds of an update on GPUs, at most; 0 on a CPU."""
    trainer = recipe.trainer
    if not trainer.deepspeed.gpus_per_rank:
        return 0.0
    tokens = trainer.samples_per_update * (recipe.sampling.max_tokens + 512)
    passes = (4 * trainer.epochs + 2) * (2 if trainer.critic else 1)
    return 2 * weights * tokens * passes / (COMPUTE_RATE * trainer.deepspeed.ranks)
