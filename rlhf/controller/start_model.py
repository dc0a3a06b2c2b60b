"""The start model of a run: given, or a tiny model, made and warmed up on demonstrations by the learner's own
workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from rlhf.cluster.worker import Worker
from rlhf.config import failing_by_name, load_bound
from rlhf.controller.build import learner_settings
from rlhf.errors import DataError, UserError
from rlhf.models.start import start_folder, start_model
from rlhf.recipe.schema import Recipe
from rlhf.runs.view import View
from rlhf.trainer.checkpoint import model_folder
from rlhf.trainer.supervised_warmup import warm_up
from rlhf.types import Message

ANNOUNCE_EVERY = 50
DEMONSTRATIONS = "model.warmup.demonstrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Demonstrations for the warm-up of a tiny model: the conversations, and what identifies them for caching."""

    conversations: Sequence[Sequence[Message]]
    decides: str


async def starting_model(recipe: Recipe, workers: Sequence[Worker], view: View) -> str:
    """Return the folder or hub name of the start model. A missing tiny model is made, warmed up, and cached by
    content."""
    lessons = lessons_of(recipe)

    async def warm_up_and_tell(raw: Path, warm: Path) -> None:
        config = recipe.model.warmup
        assert config is not None
        assert lessons is not None, "the recipe was checked: there are demonstrations"
        view.message(f"making the start model: {config.updates} updates of supervised warm-up, kept for the next run")

        def announce(update: int, metrics: Mapping[str, float]) -> None:
            if update % ANNOUNCE_EVERY == 0 or update == config.updates:
                view.message(f"warm-up {update}/{config.updates}  negative log-likelihood {metrics['sft/nll']:.3f}")

        await warm_up(
            raw,
            warm,
            workers=workers,
            settings=learner_settings(recipe, str(raw)),
            warmup=config,
            demonstrations=lessons.conversations,
            watch=announce,
        )

    return await start_model(
        recipe.model, seed=recipe.seed, demonstrations=lessons and lessons.decides, warm_up=warm_up_and_tell
    )


def with_own_models(recipe: Recipe, folders: Mapping[str, str]) -> Recipe:
    """Return the recipe in which the models that policies have of their own are these folders or hub names, by the
    names of `Recipe.bases`."""
    policies = dict(recipe.policies)
    for base, names in recipe.bases.items():
        for name in policies.keys() & names:
            if model := policies[name].model:
                found = model.model_copy(update={"path": folders[base], "tiny": None, "warmup": None})
                policies[name] = policies[name].model_copy(update={"model": found})
    return recipe.model_copy(update={"policies": policies})


def keep_adapters(recipe: Recipe, folder: Path, *, resumed: bool) -> Recipe:
    """Copy the adapters that policies start from into the `folder`, unless the run is `resumed`, and return the recipe
    with the copies: the checkpoints that they are from may be deleted."""
    policies = dict(recipe.policies)
    for name, policy in policies.items():
        if policy.adapter:
            copy = folder / name
            if not resumed:
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(policy.adapter, copy)
            policies[name] = policy.model_copy(update={"adapter": str(copy)})
    return recipe.model_copy(update={"policies": policies})


def model_below(recipe: Recipe) -> str:
    """Return the folder or hub name of the model that a run's policies are adapters of. Raises `UserError` if the run
    made it, and it is not on this machine."""
    if recipe.model.tiny is None:
        return os.path.expanduser(str(recipe.model.path))
    lessons = lessons_of(recipe)
    folder = start_folder(recipe.model, seed=recipe.seed, demonstrations=lessons and lessons.decides)
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not there: the model that the run made for its policies; copy it from the machine that "
            "trained, or set model.cache_dir to its folder"
        )
    return str(folder)


def played_from(checkpoint: str, recipe: Recipe) -> tuple[str, Recipe]:
    """Return the model that engines serve to play a checkpoint of the recipe, and the recipe with the models that its
    policies have of their own. Raises `UserError`."""
    if not recipe.policies:
        return model_folder(checkpoint), recipe
    models = {base: model_below(recipe.of_base(base)) for base in recipe.bases}
    return models[""], with_own_models(recipe, models)


def lessons_of(recipe: Recipe) -> Lessons | None:
    """Make the recipe's demonstrations, with a digest of them; None without a warm-up. Raises `ConfigError`,
    `DataError`."""
    warmup = recipe.model.warmup
    if warmup is None:
        return None
    name, count = warmup.demonstrations, warmup.updates * warmup.batch_size
    make = load_bound(name, DEMONSTRATIONS, {"count": count, "seed": recipe.seed, **warmup.arguments}, given=0)
    made = failing_by_name(make, name, DEMONSTRATIONS)()
    if not isinstance(made, Iterable):
        raise DataError(f"{DEMONSTRATIONS} is {name}, which returned {made!r:.80}, not conversations")
    conversations = [_conversation(one, name) for one in islice(made, count)]
    if len(conversations) < count:
        raise DataError(
            f"{DEMONSTRATIONS} is {name}, which returned only {len(conversations)} of {count} conversations"
        )
    digest = blake2b(repr(conversations).encode(), digest_size=16).hexdigest()
    return Lessons(conversations=conversations, decides=digest)


def _conversation(made: object, name: str) -> Sequence[Message]:
    """Return `made` as a conversation with at least one reply to imitate. Raises `DataError`."""
    messages = list(made) if isinstance(made, Sequence) else []
    if not all(isinstance(one, Message) for one in messages) or all(one.role != "assistant" for one in messages):
        raise DataError(
            f"{DEMONSTRATIONS} is {name}, which gave {made!r:.80}; a conversation is a list of rlhf.types.Message, of "
            "which the assistant's are imitated"
        )
    return messages
