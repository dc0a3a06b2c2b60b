"""Supervised warm-up of a made model on demonstrations of the task, by the recipe's own learner, before RL starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rlhf.chat.image_reader import ImageReader
from rlhf.chat.reply_tokens import ReplyEncoder, conversation
from rlhf.cluster.worker import Worker
from rlhf.models.config import WarmupConfig
from rlhf.trainer.config import OptimizerConfig, TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.trainer.sft import fine_tune
from rlhf.types import Message


async def warm_up(
    raw: Path,
    warm: Path,
    *,
    workers: Sequence[Worker],
    settings: LearnerSettings,
    warmup: WarmupConfig,
    demonstrations: Iterable[Sequence[Message]],
    watch: Callable[[int, Mapping[str, float]], None],
) -> None:
    """Train the model in `raw` on the replies of conversations and write the result into `warm`.

    All weights are trained, even if the run trains adapters or keeps the tower frozen. `settings` are those of the run
    that follows; the workers can be restarted for it.
    """
    from rlhf.models.loading import load_tokenizer

    tokenizer = load_tokenizer(str(raw))
    trainer = warmup_trainer(settings.trainer, warmup)
    learner = RemoteLearner(workers, trainer)
    whole = settings.model.model_copy(update={"lora": None, "tower": settings.model.tower and "trained"})
    await learner.start(LearnerSettings(model_path=str(raw), model=whole, trainer=trainer, device=settings.device))
    replies = ReplyEncoder(tokenizer)
    images = ImageReader(str(raw)) if whole.tower else None
    segments = (conversation(tokenizer, messages, replies=replies, images=images) for messages in demonstrations)
    await fine_tune(learner, segments, updates=warmup.updates, batch_size=warmup.batch_size, watch=watch)
    await learner.export(warm)
    await learner.stop()


def warmup_trainer(trainer: TrainerConfig, warmup: WarmupConfig) -> TrainerConfig:
    """Return the recipe's ranks, with one optimizer step per update, and a learning rate that rises for a tenth of the
    steps and then decays to zero."""
    optimizer = OptimizerConfig(
        learning_rate=warmup.learning_rate, schedule="linear", warmup_steps=warmup.updates // 10
    )
    return TrainerConfig(
        updates=warmup.updates,
        optimizer=optimizer,
        deepspeed=trainer.deepspeed,
        tokens_per_microbatch=trainer.tokens_per_microbatch,
    )
