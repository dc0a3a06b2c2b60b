"""Estimate a recipe on a machine by the shape of its model: that of a well-known model, or of its modules."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from rlhf.models.failures import naming_model
from rlhf.models.model_files import Values
from rlhf.recipe.model_configs import model_values
from rlhf.recipe.planning.estimate import Estimate, estimate_run
from rlhf.recipe.planning.fitting import EstimateOf
from rlhf.recipe.planning.known_shapes import known_model, rough_model
from rlhf.recipe.planning.layout import RunLayout, layout_of
from rlhf.recipe.planning.machines import Machine
from rlhf.recipe.planning.shape import DTYPE_BYTES, Activations, ModelShape, some_recomputed
from rlhf.recipe.preflight import check_heads
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import learner_device, roles_of
from rlhf.trainer.rank.zero_config import deepspeed_config
from rlhf.trainer.settings import LearnerSettings

DENSE_TOKENS = 4096
"""Longest rows whose replies share a prompt under a mask; the mask is part of the activations."""


def estimator(recipe: Recipe, config: Path | None, prompt_tokens: int, rough: bool = False) -> EstimateOf:
    """Return a function that estimates a recipe with this recipe's model on a machine. A `rough` estimate needs no
    torch, also for a model that is not well known. Raises `ModelError`."""
    name, values = model_values(recipe.model, config)
    known = known_model(name, values) or (rough_model(name, values) if rough else None)
    shape = known.shape if known else _shape(name, values)
    as_known = rough or (recipe.model.dtype != "float32" and recipe.model.attention == "auto")

    @cache
    def passes(every: int, memory: int | None) -> Activations:
        if every > 1:
            share = -(-shape.layers // every) / shape.layers
            return some_recomputed(passes(0, memory), passes(1, memory), share)
        if known and as_known and (rough or memory):
            width = DTYPE_BYTES[recipe.model.dtype]
            return known.activations(checkpointing=every == 1, memory=memory, width=width)
        run = _layout(name, recipe, shape, prompt_tokens)
        return _activations(shape, values, recipe, run, checkpointing=every == 1, memory=memory)

    def estimate(recipe: Recipe, machine: Machine) -> Estimate:
        check_heads(recipe, values)
        run = _layout(name, recipe, shape, prompt_tokens)
        memory = machine.card.memory if machine.card and run.learner.device == "cuda" else None
        return estimate_run(shape, run, machine, roles_of(recipe), partial(passes, memory=memory))

    return estimate


def _layout(name: str, recipe: Recipe, shape: ModelShape, prompt_tokens: int) -> RunLayout:
    settings = LearnerSettings(
        model_path=name, model=recipe.model, trainer=recipe.trainer, device=learner_device(recipe)
    )
    zero = deepspeed_config(settings, recipe.trainer.optimizer, recipe.trainer.deepspeed.ranks, shape.parameters)
    return layout_of(recipe, zero["zero_optimization"], prompt=prompt_tokens, context=shape.context_tokens)


def _shape(name: str, values: Values) -> ModelShape:
    from rlhf.recipe.planning.meta_model import shape_of

    with naming_model(f"{name}: the shape of {values['model_type']} is not known"):
        return shape_of(name, values)


def _activations(
    shape: ModelShape, values: Values, recipe: Recipe, run: RunLayout, *, checkpointing: bool, memory: int | None
) -> Activations:
    """Measure the passes of the model's modules over rows of full length."""
    from rlhf.recipe.planning.meta_model import activations_of

    reply = max(min(run.reply, shape.context_tokens - run.prompt), 1)
    shared = run.replies > 1 and run.prompt + reply <= DENSE_TOKENS
    with naming_model(f"{shape.name}: the passes of {shape.architecture} cannot be measured"):
        return activations_of(
            values, dtype=recipe.model.dtype, checkpointing=checkpointing, attention=recipe.model.attention,
            lengths=(run.prompt, reply, 2 if shared else 1), tokens=run.learner.tokens, memory=memory,
        )  # fmt: skip
