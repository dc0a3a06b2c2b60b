"""The model a run starts from: given, or tiny, made and warmed up on demonstrations by the learner's own workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf.cluster.worker import Worker
from rlhf.data.sorting import demonstrations
from rlhf.models.start import start_model
from rlhf.recipe import Recipe
from rlhf.runs.view import View
from rlhf.trainer.warmup import warm_up
from rlhf.wiring import learner_settings

ANNOUNCE_EVERY = 50


async def starting_model(recipe: Recipe, workers: Sequence[Worker], view: View) -> str:
    """The folder or hub name to start from. A tiny model that is missing is made, warmed up, and kept by content."""
    sorting = recipe.data.made

    async def warm_up_and_tell(raw: Path, warm: Path) -> None:
        config = recipe.model.warmup
        assert config is not None
        assert sorting is not None, "the recipe was checked: only the made task has demonstrations"
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
            demonstrations=demonstrations(sorting, config.updates * config.batch_size, recipe.seed),
            watch=announce,
        )

    return await start_model(
        recipe.model,
        seed=recipe.seed,
        demonstrations=sorting.model_dump(mode="json") if sorting else None,
        warm_up=warm_up_and_tell,
    )
