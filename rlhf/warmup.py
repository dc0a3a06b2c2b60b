"""The model a run starts from: given, or tiny, made and warmed up on demonstrations by the learner's own workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf.cluster.worker import Worker
from rlhf.data.sorting import demonstrations
from rlhf.models.chat import demonstration
from rlhf.models.config import WarmupConfig
from rlhf.models.loading import load_tokenizer
from rlhf.models.start import start_model
from rlhf.recipe import Recipe
from rlhf.runs.view import View
from rlhf.trainer.config import LossConfig, OptimizerConfig, TrainerConfig
from rlhf.trainer.sft import fine_tune
from rlhf.wiring import learner_settings, make_learner

ANNOUNCE_EVERY = 50


async def starting_model(recipe: Recipe, workers: Sequence[Worker], view: View) -> str:
    """The folder or hub name to start from. A tiny model that is missing is made, warmed up, and kept by content."""
    sorting = recipe.data.train.sorting

    async def warm_up(raw: Path, warm: Path) -> None:
        config = recipe.model.warmup
        assert config is not None
        assert sorting is not None, "the recipe was checked: only the made task has demonstrations"
        view.message(f"making the start model: {config.updates} updates of supervised warm-up, kept for the next run")
        trainer = warmup_trainer(recipe.trainer, config)
        learner = make_learner(recipe, trainer, workers)
        await learner.start(learner_settings(recipe, trainer, str(raw)))
        tokenizer = load_tokenizer(str(raw))
        pairs = demonstrations(sorting, config.updates * config.batch_size, recipe.seed)
        await fine_tune(
            learner,
            (demonstration(tokenizer, messages, response) for messages, response in pairs),
            updates=config.updates,
            batch_size=config.batch_size,
            watch=lambda update, metrics: announce(view, update, config.updates, metrics["nll"]),
        )
        await learner.export(warm)
        await learner.stop()

    return await start_model(
        recipe.model,
        seed=recipe.seed,
        demonstrations=sorting.model_dump(mode="json") if sorting else None,
        warm_up=warm_up,
    )


def warmup_trainer(trainer: TrainerConfig, warmup: WarmupConfig) -> TrainerConfig:
    """The recipe's ranks, one optimizer step an update, and a rate that rises for a tenth and falls to zero."""
    optimizer = OptimizerConfig(
        learning_rate=warmup.learning_rate, schedule="linear", warmup_steps=warmup.updates // 10
    )
    changed = {"updates": warmup.updates, "epochs": 1, "minibatches": 1, "optimizer": optimizer, "loss": LossConfig()}
    return trainer.model_copy(update=changed)


def announce(view: View, update: int, updates: int, nll: float) -> None:
    if update % ANNOUNCE_EVERY == 0 or update == updates:
        view.message(f"warm-up {update}/{updates}  negative log-likelihood {nll:.3f}")
