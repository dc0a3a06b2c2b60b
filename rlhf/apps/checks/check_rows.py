"""`rlhf check` reads every row of the local datasets, as the run will."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlhf.data.config import EvaluationSetConfig
from rlhf.data.few_shot import with_shots
from rlhf.data.preparation import RowCounts
from rlhf.data.selection import distinct, doubtful
from rlhf.data.sources import load_demonstrations, load_pairs, load_tasks, local_files, read_rows
from rlhf.data.tasks import fitting
from rlhf.models.model_files import context_tokens
from rlhf.recipe.preflight import is_hub_name, read_model_config
from rlhf.recipe.schema import Recipe
from rlhf.types import Message, Task, Tool
from rlhf.untrusted_text import escape_controls


def check_rows(recipe: Recipe) -> tuple[list[str], str]:
    """Read every row of the local datasets; return the notes that the run will print about them, and the first prompt.
    Raises `DataError` for an unusable row, and for one longer than the model's context. A tokenizer is loaded only if a
    row may be too long, or if the recipe makes prompts by templates or examples."""
    told, asked, data, seed = list[str](), list[tuple[Sequence[Message], Sequence[Tool]]](), recipe.data, recipe.seed
    for key, config in data.sets.items():
        if recipe.is_own_kind or (config.path is not None and not local_files(config)):
            continue
        if config.row or config.filter:
            deque(read_rows(config, counts := RowCounts()), 0)
            told.append(f"{key}: {counts.describe()}")
        if recipe.kind in ("reward_model", "preference"):
            pairs = load_pairs(config)
            told += filter(None, [f"{len(pairs.pairs):,} pairs in {key}", pairs.describe()])
            asked += [(one.prompt, one.tools) for one in with_shots(pairs.pairs[:1], data, key, seed)]
        elif config.path is None:
            continue
        elif recipe.kind == "sft":
            demonstrations, context = load_demonstrations(config), _context(recipe)
            shown = with_shots(demonstrations, data, key, seed)
            asked += [(one.prompt, one.tools) for one in shown[:1]]
            limited = config.min_prompt_tokens or config.max_prompt_tokens
            if context and key in recipe.data.train_sets and (limited or any(doubtful(shown, context))):
                from rlhf.controller.sft import selected

                selected(recipe, demonstrations, key, _tokenizer(recipe), context, told.append)
        else:
            tasks, context = with_shots(load_tasks(config), data, key, seed), _context(recipe)
            if context and recipe.tasks_ask:
                tasks = fitting(tasks, config, _prompt_tokens(recipe), key, told.append, context)
            if isinstance(config, EvaluationSetConfig):
                distinct(tasks, key, told.append)
            asked += [(one.messages, one.tools) for one in tasks[:1]]
    return told, _first_prompt(recipe, *asked[0]) if asked and recipe.tasks_ask else ""


def _first_prompt(recipe: Recipe, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Return the prompt as the model will see it, if the recipe makes it and the model is here; else its messages."""
    sets = recipe.data.sets.values()
    if _context(recipe) and any(one.template or one.system_template or one.few_shot for one in sets):
        from rlhf.chat.templates import arguments_with_tools, prompt_text

        arguments = arguments_with_tools(recipe.data.chat_template_arguments, tools)
        text = prompt_text(_tokenizer(recipe), messages, arguments)
    else:
        text = "\n".join(f"{message.role}: {message.content}" for message in messages)
    return escape_controls(text if len(text) <= 4000 else f"{text[:2000]} … {text[-2000:]}")


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

        return byte_tokenizer(sees=recipe.model.tiny.sees)
    from rlhf.models.loading import load_tokenizer

    return load_tokenizer(str(recipe.model.path), trust_remote_code=recipe.model.trust_remote_code)
