"""`rlhf check` reads every row of the local datasets, as the run will."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rlhf.data.config import EvaluationSetConfig
from rlhf.data.selection import distinct, doubtful
from rlhf.data.sources import load_demonstrations, load_pairs, load_tasks, local_files
from rlhf.data.tasks import fitting
from rlhf.models.model_files import context_tokens
from rlhf.recipe.preflight import is_hub_name, read_model_config
from rlhf.recipe.schema import Recipe
from rlhf.types import Task


def check_rows(recipe: Recipe) -> list[str]:
    """Read every row of the local datasets; return the notes that the run will print about them. Raises `DataError` for
    an unusable row, and for one longer than the model's context. A tokenizer is loaded only if a row may be too long.
    """
    told: list[str] = []
    for key, config in recipe.data.sets.items():
        if recipe.is_own_kind or (config.path is not None and not local_files(config)):
            continue
        if recipe.kind in ("reward_model", "preference"):
            pairs = load_pairs(config)
            told += filter(None, [f"{len(pairs.pairs):,} pairs in {key}", pairs.describe()])
        elif config.path is None:
            continue
        elif recipe.kind == "sft":
            demonstrations, context = load_demonstrations(config), _context(recipe)
            limited = config.min_prompt_tokens or config.max_prompt_tokens
            if context and key in recipe.data.train_sets and (limited or any(doubtful(demonstrations, context))):
                from rlhf.controller.sft import selected

                selected(recipe, demonstrations, key, _tokenizer(recipe), context, told.append)
        else:
            tasks, context = load_tasks(config), _context(recipe)
            if context and recipe.tasks_ask:
                tasks = fitting(tasks, config, _prompt_tokens(recipe), key, told.append, context)
            if isinstance(config, EvaluationSetConfig):
                distinct(tasks, key, told.append)
    return told


def _context(recipe: Recipe) -> int | None:
    """Return the context of the recipe's model; None for a model on the hub, whose tokenizer is not here."""
    if recipe.model.tiny is not None:
        model = recipe.model.tiny.max_position_embeddings
    elif recipe.model.path is None or is_hub_name(recipe.model.path):
        return None
    else:
        model = context_tokens(read_model_config(Path(recipe.model.path).expanduser())) or 0
    limits = [limit for limit in (model, recipe.plays and recipe.rollout.max_context_tokens) if limit]
    return min(limits, default=None)


def _prompt_tokens(recipe: Recipe) -> Callable[[Task], int]:
    @cache
    def renderer() -> Any:
        from rlhf.chat.renderer import ChatRenderer

        return ChatRenderer(_tokenizer(recipe), recipe.data.chat_template_arguments)

    return lambda task: int(renderer().prompt_tokens(task))


def _tokenizer(recipe: Recipe) -> Any:
    if recipe.model.tiny is not None:
        from rlhf.models.tiny import byte_tokenizer

        return byte_tokenizer()
    from rlhf.models.loading import load_tokenizer

    return load_tokenizer(str(recipe.model.path), trust_remote_code=recipe.model.trust_remote_code)
