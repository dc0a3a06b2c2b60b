"""`rlhf check` reads every row of the local datasets, as the run will."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rlhf.chat.image_reader import NO_TOWER, ImageReader
from rlhf.data.config import EvaluationSetConfig
from rlhf.data.few_shot import with_shots
from rlhf.data.preparation import RowCounts
from rlhf.data.selection import distinct, doubtful
from rlhf.data.sources import load_demonstrations, load_pairs, load_tasks, local_files, read_rows
from rlhf.data.tasks import fitting
from rlhf.errors import ModelError
from rlhf.images import Image, image_size, shown_text
from rlhf.models.model_files import context_tokens
from rlhf.recipe.preflight import is_hub_name, read_model_config
from rlhf.recipe.schema import Recipe
from rlhf.types import Message, Task, Tool
from rlhf.untrusted_text import escape_controls

Reader = Callable[[], ImageReader | None]


def check_rows(recipe: Recipe) -> tuple[list[str], str]:
    """Read every row of the local datasets; return the notes that the run will print about them, and the first prompt.
    Raises `DataError` for an unusable row, and for one longer than the model's context. A tokenizer is loaded only if a
    row may be too long, or if the recipe makes prompts by templates or examples."""
    told, asked, data, seed = list[str](), list[tuple[Sequence[Message], Sequence[Tool]]](), recipe.data, recipe.seed
    reader = cache(lambda: _reader(recipe))
    for key, config in data.sets.items():
        if recipe.is_own_kind or (config.path is not None and not local_files(config)):
            continue
        if config.row or config.filter:
            deque(read_rows(config, counts := RowCounts()), 0)
            told.append(f"{key}: {counts.describe()}")
        if recipe.kind in ("reward_model", "preference"):
            pairs = load_pairs(config)
            told += filter(None, [f"{len(pairs.pairs):,} pairs in {key}", pairs.describe()])
            told += _images(recipe, key, (one.prompt for one in pairs.pairs), reader)
            asked += [(one.prompt, one.tools) for one in with_shots(pairs.pairs[:1], data, key, seed)]
        elif config.path is None:
            continue
        elif recipe.kind == "sft":
            demonstrations, context = load_demonstrations(config), _context(recipe)
            shown = with_shots(demonstrations, data, key, seed)
            asked += [(one.prompt, one.tools) for one in shown[:1]]
            told += _images(recipe, key, (one.messages for one in demonstrations), reader)
            limited = config.min_prompt_tokens or config.max_prompt_tokens
            if context and key in recipe.data.train_sets and (limited or any(doubtful(shown, context))):
                from rlhf.controller.sft import selected

                selected(recipe, demonstrations, key, _tokenizer(recipe), context, told.append, reader())
        else:
            tasks, context = with_shots(load_tasks(config), data, key, seed), _context(recipe)
            told += _images(recipe, key, (one.messages for one in tasks), reader)
            if context and recipe.tasks_ask:
                tasks = fitting(tasks, config, _prompt_tokens(recipe, reader), key, told.append, context)
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
        text = "\n".join(f"{one.role}: {shown_text(one.content, one.images)}" for one in messages)
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


def _images(recipe: Recipe, key: str, asked: Iterable[Sequence[Message]], reader: Reader) -> list[str]:
    """Return how many images the rows of a set have, of which sizes, and in how many tokens; nothing without images.
    Raises `ModelError` for a recipe without a tower, and for a size that the model's processor refuses."""
    images = {image.sha256: image for messages in asked for message in messages for image in message.images}
    if images and not recipe.model.tower:
        raise ModelError(f"{key}: {NO_TOWER}")
    sizes = defaultdict[tuple[int, int], list[Image]](list)
    for image in images.values():
        sizes[image_size(image)].append(image)
    if not sizes:
        return []
    first, *_, last = sorted(sizes, key=prod) * 2
    told = f"{key}: {len(images):,} images of {first[0]}x{first[1]} to {last[0]}x{last[1]} pixels"
    if (read := reader()) is None:
        return [told]
    tokens = [1 + read.added_tokens(own[0]) for own in sizes.values() for _ in own]
    return [f"{told}, each {min(tokens)} to {max(tokens)} tokens ({fmean(tokens):.1f} on average)"]


def _reader(recipe: Recipe) -> ImageReader | None:
    """Return the model's processor of images, if the recipe shows any and the model is here."""
    if not recipe.model.tower or _context(recipe) is None:
        return None
    if recipe.model.tiny is None:
        path = str(Path(str(recipe.model.path)).expanduser())
        return ImageReader(path, trust_remote_code=recipe.model.trust_remote_code)
    from rlhf.models.tiny import save_tokenizer

    with TemporaryDirectory() as folder:
        return ImageReader(str(save_tokenizer(recipe.model.tiny, Path(folder))))


def _prompt_tokens(recipe: Recipe, reader: Reader) -> Callable[[Task], int]:
    @cache
    def renderer() -> Any:
        from rlhf.chat.renderer import ChatRenderer

        return ChatRenderer(_tokenizer(recipe), recipe.data.chat_template_arguments, images=reader())

    return lambda task: int(renderer().prompt_tokens(task))


def _tokenizer(recipe: Recipe) -> Any:
    if recipe.model.tiny is not None:
        from rlhf.models.tiny import byte_tokenizer

        return byte_tokenizer(sees=recipe.model.tiny.sees)
    from rlhf.models.loading import load_tokenizer

    return load_tokenizer(str(recipe.model.path), trust_remote_code=recipe.model.trust_remote_code)
