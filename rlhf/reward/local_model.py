"""A reward model in this process that scores texts: for servers and for inspection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rlhf.cluster.host import WorkerHost
from rlhf.cluster.local import LocalWorker
from rlhf.reward.config import ScorerConfig
from rlhf.reward.model import ModelReward
from rlhf.reward.model_worker import RewardModelSettings
from rlhf.reward.score_texts import segment_of
from rlhf.reward.wire import conversation_text
from rlhf.types import Scored, Task, Trajectory, Unscored

WORKER = "rlhf.reward.model_worker:RewardModelWorker"


class LocalModelReward:
    """A `RewardFunction` with a reward model and its own tokenizer in this process. Text is encoded as given: callers
    that need a chat template apply it to the prompt. Episodes with tokens are scored by their tokens."""

    def __init__(self, scorer: ScorerConfig, folder: str) -> None:
        self._folder, self._start_timeout_seconds = folder, scorer.start_timeout_seconds
        self._worker = LocalWorker("reward-0", WorkerHost(WORKER, concurrency=1))
        settings = RewardModelSettings(
            model=folder,
            policy=folder,
            dtype=scorer.dtype,
            device="cuda" if scorer.gpus_per_worker else "cpu",
            tokens_per_batch=scorer.tokens_per_batch,
        )
        self._model = ModelReward(
            [self._worker],
            settings,
            timeout_seconds=scorer.timeout_seconds,
            start_timeout_seconds=scorer.start_timeout_seconds,
        )

    async def start(self) -> None:
        """Load the model and its tokenizer. Raises `ModelError`."""
        from rlhf.models.loading import bare_tokenizer

        await self._worker.construct({}, self._start_timeout_seconds)
        await self._model.start()
        self._tokenizer = await asyncio.to_thread(bare_tokenizer, self._folder)

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        return await self._model(task, [self._with_tokens(task, trajectory) for trajectory in trajectories])

    async def close(self) -> None:
        await self._model.close()
        await self._worker.close()

    def _with_tokens(self, task: Task, trajectory: Trajectory) -> Trajectory:
        if trajectory.segments:
            return trajectory
        text = conversation_text(task.messages) + trajectory.response
        return replace(trajectory, segments=(segment_of(self._tokenizer.encode(text, add_special_tokens=False)),))
