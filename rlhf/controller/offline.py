"""Training on recorded episodes: the policy learns from samples and scores of an earlier run, without engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rlhf.chat.image_reader import ImageReader
from rlhf.cluster.worker import Worker
from rlhf.controller.build import make_learner, start_ranks
from rlhf.controller.dataset_trainer import DatasetTrainer, DatasetUpdate
from rlhf.controller.run import Counts
from rlhf.data.order import TaskOrder
from rlhf.data.tasks import Tell
from rlhf.recipe.schema import Recipe
from rlhf.runs.image_files import image_folder, with_features
from rlhf.runs.recorded_episodes import recorded_episodes
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.offline import Recording, check_fit, read_recording
from rlhf.types import Failed, Group, Sample, Unscored


class OfflineTrainer(DatasetTrainer):
    """Trains on recorded groups. Without held-out sets: an evaluation needs engines."""

    shown = ("reward/mean", "policy/approx_kl")

    def __init__(
        self,
        learner: RemoteLearner,
        recording: Recording,
        order: TaskOrder[Group],
        batch_size: int,
        seen: Callable[[Group], Group] = lambda group: group,
    ) -> None:
        super().__init__(learner, batch_size)
        self._recording, self._order, self._samples, self._seen = recording, order, 0, seen

    async def resume(self, checkpoint: Path) -> None:
        await super().resume(checkpoint)
        learnt = range(self.learner.version * self.batch_size)
        self._samples = sum(len(self._order[ordinal].trainable) for ordinal in learnt)

    async def update(self) -> DatasetUpdate:
        first = self.learner.version * self.batch_size
        recorded = [self._order[ordinal] for ordinal in range(first, first + self.batch_size)]
        groups = await asyncio.to_thread(list, map(self._seen, recorded))
        updated = await self.learner.update(groups)
        self._samples += len(updated.samples)
        return DatasetUpdate(metrics=updated.metrics, tokens=int(updated.metrics["tokens/trained"]))

    @property
    def counts(self) -> Counts:
        """Counts of the groups and episodes in the file, each counted once for all epochs."""
        reached = min(self.learner.version * self.batch_size, len(self._order))
        outcomes = {
            "trained": [self._order[ordinal] for ordinal in range(reached)],
            "filtered": self._recording.filtered,
            "failed": self._recording.failed,
            "in_flight": [self._order[ordinal] for ordinal in range(reached, len(self._order))],
        }
        episodes = Counter(_outcomes(outcomes)) + Counter(unscored=self._recording.unrewarded)
        return Counts(
            samples=self._samples,
            groups=_accounts({outcome: len(groups) for outcome, groups in outcomes.items()}),
            episodes=_accounts({outcome: episodes[outcome] for outcome in (*outcomes, "unscored")}),
        )


async def start_offline(recipe: Recipe, workers: Sequence[Worker], model: str, tell: Tell) -> OfflineTrainer:
    """Start the ranks on the policy in `model`, and read the episodes to train on."""
    file = recorded_episodes(str(recipe.data.episodes))
    recording = await asyncio.to_thread(read_recording, recipe.trainer, file, sees=bool(recipe.model.tower))
    tell(recording.describe())
    if recipe.data.eval is not None:
        tell("data.eval is not evaluated, because this kind starts no engine; run rlhf eval with a checkpoint")
    learner = make_learner(recipe, workers)
    facts = await start_ranks(learner, recipe, model, tell)
    check_fit(recording, file, vocab_size=facts["vocab_size"], context_tokens=facts["context_tokens"])
    order = TaskOrder(recording.sound, recipe.seed, recipe.data.shuffle)
    if not recipe.model.tower:
        return OfflineTrainer(learner, recording, order, recipe.trainer.groups_per_update)
    reader = ImageReader(model, trust_remote_code=recipe.model.trust_remote_code)
    seen = partial(with_features, folder=image_folder(file), features_of=reader.features)
    return OfflineTrainer(learner, recording, order, recipe.trainer.groups_per_update, seen)


def _outcomes(groups: Mapping[str, Sequence[Group]]) -> Iterable[str]:
    """Iterate over the outcome of every episode: its own failure, else that of its group."""
    for outcome, those in groups.items():
        yield from (_outcome(sample, outcome) for group in those for sample in group.samples)


def _outcome(sample: Sample, of_group: str) -> str:
    if isinstance(sample.trajectory, Failed):
        return "failed"
    return "unscored" if isinstance(sample.score, Unscored) else of_group


def _accounts(outcomes: Mapping[str, int]) -> dict[str, int]:
    return {"admitted": sum(outcomes.values())} | dict(outcomes)
