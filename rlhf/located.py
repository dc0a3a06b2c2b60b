"""Where the models that a recipe names really are: a run folder stands for the model of its newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rlhf.config import C
from rlhf.layers import LoadedRecipe
from rlhf.recipe import Recipe
from rlhf.reward.config import RewardConfig
from rlhf.trainer.checkpoint import CHECKPOINTS, model_folder


def located(loaded: LoadedRecipe) -> LoadedRecipe:
    """The recipe with every run folder replaced by the Hugging Face folder in it; names of other kinds stay.

    Raises `CheckpointError` for a run that has left no finished checkpoint.
    """
    return replace(loaded, recipe=with_folders(loaded.recipe))


def with_folders(recipe: Recipe) -> Recipe:
    """See `located`."""
    trainer, critic = recipe.trainer, recipe.trainer.critic
    changed_critic = critic and _changed(critic, {"path": critic.path})
    changed_trainer = _changed(trainer, {"reference_path": trainer.reference_path})
    parts = {
        "model": _changed(recipe.model, {"path": recipe.model.path}),
        "reward": _located_reward(recipe.reward),
        "trainer": changed_trainer.model_copy(update={"critic": changed_critic}),
    }
    return recipe.model_copy(update=parts)


def _located_reward(reward: RewardConfig) -> RewardConfig:
    parts = {name: _changed(part, {"model": part.model}) for name, part in reward.parts.items()}
    return _changed(reward, {"model": reward.model}).model_copy(update={"parts": parts})


def _changed(part: C, names: Mapping[str, str | None]) -> C:
    return part.model_copy(update={key: name and folder_of(name) for key, name in names.items()})


def folder_of(name: str) -> str:
    """The model folder in a run folder; any other name as it is."""
    path = Path(name).expanduser()
    if (path / CHECKPOINTS).is_dir():
        return model_folder(str(path))
    return str(path) if name.startswith("~") else name
