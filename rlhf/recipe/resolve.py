"""Resolve the models that a recipe names: replace a run folder by the model of its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf.config import C, read_yaml
from rlhf.errors import ConfigError
from rlhf.recipe.by_size import with_sizes
from rlhf.recipe.loading import LoadedRecipe
from rlhf.recipe.placement import PlacementTarget, placed
from rlhf.recipe.policies import PolicyConfig
from rlhf.recipe.schema import Recipe
from rlhf.reward.config import RewardConfig
from rlhf.trainer.checkpoint import CHECKPOINTS, adapter_folder, model_folder

RecipeValues = Mapping[str, Any]
HERE = PlacementTarget()
ABOVE = 3
"""Folders between a run's and its checkpoint's model."""


def located(loaded: LoadedRecipe, *, resumed: bool = False, target: PlacementTarget = HERE) -> LoadedRecipe:
    """Replace every run folder of the recipe by its Hugging Face folder, and defaults by those for the model's size and
    for the `target`'s machine. A `resumed` run keeps the checkpoints with which it began, even if newer ones exist.
    Raises `CheckpointError` for a run without a finished checkpoint, and `PlacementError` if nothing fits."""
    recorded = loaded.recipe.run_dir / "recipe.yaml"
    before = read_yaml(recorded) if resumed and recorded.is_file() else {}
    model = with_folders(loaded.recipe, before).model
    loaded = with_sizes(placed(loaded, model, target), model)
    return replace(loaded, recipe=with_folders(loaded.recipe, before))


def with_folders(recipe: Recipe, before: RecipeValues) -> Recipe:
    """Replace run folders of the recipe; `before` are the recipe's values when the run began."""
    trainer, critic, began = recipe.trainer, recipe.trainer.critic, _below(before, "trainer")
    changed_critic = critic and _changed(critic, "path", critic.path, _below(began, "critic"))
    changed_trainer = _changed(trainer, "reference_path", trainer.reference_path, began)
    parts = {
        "model": _changed(recipe.model, "path", recipe.model.path, _below(before, "model")),
        "reward": _located_reward(recipe.reward, _below(before, "reward")),
        "trainer": changed_trainer.model_copy(update={"critic": changed_critic}),
        "policies": {
            name: _located_policy(policy, _below(_below(before, "policies"), name))
            for name, policy in recipe.policies.items()
        },
    }
    return recipe.model_copy(update=parts)


def _located_reward(reward: RewardConfig, before: RecipeValues) -> RewardConfig:
    began = _below(before, "parts")
    parts = {name: _changed(part, "model", part.model, _below(began, name)) for name, part in reward.parts.items()}
    return _changed(reward, "model", reward.model, before).model_copy(update={"parts": parts})


def _located_policy(policy: PolicyConfig, before: RecipeValues) -> PolicyConfig:
    model = policy.model and _changed(policy.model, "path", policy.model.path, _below(before, "model"))
    located = _changed(policy, "adapter", policy.adapter, before, adapter_folder)
    return located.model_copy(update={"model": model})


def model_folder_of(name: str) -> str:
    """Return the model folder in a run folder, and any other name unchanged."""
    path = Path(name).expanduser()
    if (path / CHECKPOINTS).is_dir():
        return model_folder(path)
    return str(path) if name.startswith("~") else name


def _changed(
    part: C, key: str, name: str | None, before: RecipeValues, folder_of: Callable[[str], str] = model_folder_of
) -> C:
    began, run = before.get(key), (name or "").partition(":")[0]
    if name and began and (Path(run).expanduser() / CHECKPOINTS) in Path(began).parents:
        return part.model_copy(update={key: began})
    return part.model_copy(update={key: name and folder_of(name)})


def _below(values: RecipeValues, key: str) -> RecipeValues:
    return values.get(key) or {}


def recipe_of_run(checkpoint: Path) -> Path:
    """Return the recipe of a checkpoint's run, from its folder or those above. Raises `ConfigError`."""
    folders = (checkpoint, *checkpoint.absolute().parents[:ABOVE])
    found = next((folder / "recipe.yaml" for folder in folders if (folder / "recipe.yaml").is_file()), None)
    if found is None:
        raise ConfigError(f"{checkpoint} is not in a run folder with a recipe.yaml; give the recipe: --recipe RECIPE")
    return found


def check_evaluates(recipe: Recipe, path: str) -> None:
    """Check that the recipe of this `path` has problems for engines to play. Raises `ConfigError`."""
    if recipe.kind in ("reward_model", "preference"):
        raise ConfigError(
            f"{path} is of kind: {recipe.kind}, which evaluates held-out pairs while it trains; rlhf eval plays "
            "episodes, for instance those of a recipe of kind: rl"
        )
    if recipe.data.eval is None:
        raise ConfigError(f"{path} has no data.eval: there is nothing to evaluate on")
