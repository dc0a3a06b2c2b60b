"""What `rlhf check` says about training: the preset's settings, loss, KL, learning rates, critic and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhf.cluster.machine import this_machine
from rlhf.cluster.roles import Role, used_gpus
from rlhf.config import flatten, is_piece, shown_value
from rlhf.recipe.kinds import OF_EXAMPLES
from rlhf.recipe.loading import LoadedRecipe
from rlhf.recipe.schema import Recipe
from rlhf.trainer.config import OptimizerConfig
from rlhf.trainer.credit.registry import LOSSES, PRESETS

LabelledText = tuple[str, str]
"""A label and its text."""


def training(loaded: LoadedRecipe) -> Iterator[LabelledText]:
    """Iterate over what decides an update: the preset's settings that the recipe does not replace, loss, KL, rates and
    their warm-up, critic, the loss on pairs."""
    recipe, trainer = loaded.recipe, loaded.recipe.trainer
    if (name := trainer.algorithm) is not None:
        values = dict(flatten(trainer.model_dump(mode="json")))
        keys = [key.removeprefix("trainer.") for key, origin in loaded.origins.items() if origin == f"algorithm {name}"]
        settings = ", ".join(f"{key} {shown_value(values[key])}" for key in keys if key in values)
        yield "preset", f"{name} (arXiv {PRESETS[name].paper}): {settings or 'the recipe replaces all of its settings'}"
    if recipe.plays:
        read = set() if is_piece(trainer.loss.policy) else set(LOSSES[trainer.loss.policy].settings)
        values = trainer.loss.model_dump(include=read, exclude_none=True)
        yield "loss", ", ".join([trainer.loss.policy, *(f"{key} {value:g}" for key, value in values.items())])
        kl = trainer.kl
        stop = f"; an update ends above {kl.stop:g} nats per token from the sampling policy" if kl.stop else ""
        target = f", adapted towards {kl.target:g} nats per token" if kl.target else ""
        weight = f"coefficient {kl.coefficient:g} in the {kl.place}{target}" if kl.coefficient else "none"
        yield "KL penalty", f"{weight}{stop}"
        yield "sampling", f"at temperature {recipe.sampling.temperature:g}"
    steps = trainer.updates if recipe.kind in OF_EXAMPLES else trainer.policy_steps
    yield "learning rate", describe_rate(trainer.optimizer, steps)
    if (critic := trainer.critic) is not None:
        alone = f", trained alone for the first {critic.warmup_updates:,} updates" if critic.warmup_updates else ""
        yield "critic", f"{critic.path or 'the start model with a head of zeros'}{alone}"
        yield "its rate", describe_rate(critic.optimizer, trainer.optimizer_steps)
    if recipe.kind == "preference":
        yield "loss on pairs", f"{trainer.preference.loss}, beta {trainer.preference.beta:g}"


def describe_rate(optimizer: OptimizerConfig, steps: int) -> str:
    """Return the learning rate with its schedule, and whether the warm-up is longer than the `steps` of the run."""
    text = f"{optimizer.learning_rate:g}, {optimizer.schedule}"
    if not optimizer.warmup_steps:
        return text
    text += f", warm-up of {optimizer.warmup_steps:,} steps"
    if optimizer.warmup_steps < steps:
        return text
    return f"{text}: longer than the run, which has {steps:,}, so the rate never reaches {optimizer.learning_rate:g}"


def describe_gpus(recipe: Recipe, roles: Sequence[Role]) -> list[LabelledText]:
    """Return the GPUs that the run uses, of those that are here; nothing where both have none."""
    used, here = used_gpus(roles), this_machine().gpus
    if recipe.cluster.address:
        return [("GPUs", f"uses {used:g} of the cluster's")] if used else []
    return [("GPUs", f"uses {used:g} of {here:g}")] if used or here else []
