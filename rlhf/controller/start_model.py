"""The start model of a run: given, or a tiny model, made and warmed up on demonstrations by the learner's own
workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf.cluster.worker import Worker
from rlhf.config import load_piece
from rlhf.controller.build import learner_settings
from rlhf.data.config import MadeConfig
from rlhf.data.made import demonstrations
from rlhf.env.config import EnvironmentConfig
from rlhf.errors import DataError
from rlhf.models.start import start_model
from rlhf.recipe.schema import Recipe
from rlhf.runs.view import View
from rlhf.trainer.warmup import warm_up
from rlhf.types import Message

ANNOUNCE_EVERY = 50
Conversation = Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Demonstrations for the warm-up of a tiny model: the conversations, and what identifies them for caching."""

    conversations: Iterable[Conversation]
    decides: Any


async def starting_model(recipe: Recipe, workers: Sequence[Worker], view: View) -> str:
    """The folder or hub name of the start model. A missing tiny model is made, warmed up, and cached by content."""
    lessons = lessons_of(recipe)

    async def warm_up_and_tell(raw: Path, warm: Path) -> None:
        config = recipe.model.warmup
        assert config is not None
        assert lessons is not None, "the recipe was checked: there are demonstrations"
        view.message(f"making the start model: {config.updates} updates of supervised warm-up, kept for the next run")

        def announce(update: int, metrics: Mapping[str, float]) -> None:
            if update % ANNOUNCE_EVERY == 0 or update == config.updates:
                view.message(f"warm-up {update}/{config.updates}  negative log-likelihood {metrics['nll']:.3f}")

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


def lessons_of(recipe: Recipe) -> Lessons | None:
    """The demonstrations of the recipe's environment, or of its made task; None without a warm-up."""
    warmup, environment, made = recipe.model.warmup, recipe.environment, recipe.data.made
    if warmup is None:
        return None
    count = warmup.updates * warmup.batch_size
    if environment is not None and environment.demonstrations is not None:
        return played_lessons(environment, count, recipe.seed)
    assert made is not None, "the recipe was checked: there are demonstrations"
    return made_lessons(made, count, recipe.seed)


def made_lessons(made: MadeConfig, count: int, seed: int) -> Lessons:
    """The demonstrations of a made task, identified by its settings."""
    return Lessons(
        conversations=(
            (*messages, Message(role="assistant", content=response))
            for messages, response in demonstrations(made, count, seed)
        ),
        decides=made.model_dump(mode="json"),
    )


def played_lessons(environment: EnvironmentConfig, count: int, seed: int) -> Lessons:
    """The demonstrations of a user's function, identified by their content. Raises `ConfigError`, `DataError`."""
    setting = "environment.demonstrations"
    make = load_piece(str(environment.demonstrations), setting)
    made: list[Conversation] = list(islice(make(count=count, seed=seed, **environment.arguments), count))
    if len(made) < count:
        raise DataError(f"{setting} is {environment.demonstrations}, which gave {len(made)} of {count} conversations")
    return Lessons(conversations=made, decides=blake2b(repr(made).encode(), digest_size=16).hexdigest())
