"""Training on recorded episodes: the policy learns from samples and scores of an earlier run, without engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf.cluster.worker import Worker
from rlhf.controller.build import learner_settings, make_learner
from rlhf.controller.dataset_trainer import StepResult
from rlhf.controller.run import Counts
from rlhf.data.order import TaskOrder
from rlhf.data.tasks import Tell
from rlhf.errors import DataError
from rlhf.recipe.schema import Recipe
from rlhf.rollout.evaluation import SetResult
from rlhf.runs.recorded import episodes_file, recorded_groups
from rlhf.trainer.algorithm import needs_of
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.statistics import batch_statistics
from rlhf.types import Failed, Group, Sample, Unscored


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The groups of a file: those to train on, in the order of ordinals; those whose rewards are all equal, where the
    recipe filters them; and those with too few trainable samples."""

    sound: tuple[Group, ...]
    filtered: tuple[Group, ...]
    failed: tuple[Group, ...]

    def describe(self) -> str:
        """The number of groups of each sort, in one line."""
        left_out = ((len(self.failed), "failed"), (len(self.filtered), "with equal rewards filtered"))
        told = "".join(f", {count} {why}" for count, why in left_out if count)
        return f"{len(self.sound)} recorded groups to learn from{told}"


class OfflineTrainer:
    """A `DatasetTrainer` on recorded groups. Without held-out sets: an evaluation needs engines."""

    shown = ("reward/mean", "approx_kl")
    evaluates = False

    def __init__(self, learner: RemoteLearner, recording: Recording, order: TaskOrder[Group], batch_size: int) -> None:
        self.learner, self._recording = learner, recording
        self._order, self._batch_size = order, batch_size
        self._samples = 0

    async def resume(self, checkpoint: Path) -> None:
        await self.learner.load(checkpoint)
        learnt = range(self.learner.version * self._batch_size)
        self._samples = sum(len(self._order[ordinal].trainable) for ordinal in learnt)

    async def update(self) -> StepResult:
        first = self.learner.version * self._batch_size
        groups = [self._order[ordinal] for ordinal in range(first, first + self._batch_size)]
        statistics = batch_statistics(groups, version=0)
        updated = await self.learner.update(groups)
        self._samples += len(updated.samples)
        # Versions are those of the recording run: staleness is not defined in the updates of this run.
        told = {name: value for name, value in statistics.items() if not name.startswith("staleness/")}
        return StepResult(metrics=told | dict(updated.metrics), tokens=int(statistics["tokens/trained"]))

    async def evaluate(self) -> tuple[SetResult, ...]:
        return ()

    @property
    def counts(self) -> Counts:
        """Every group and every episode of the file counted once, whatever the number of epochs."""
        reached = min(self.learner.version * self._batch_size, len(self._order))
        fates = {
            "trained": [self._order[ordinal] for ordinal in range(reached)],
            "filtered": self._recording.filtered,
            "failed": self._recording.failed,
            "in_flight": [self._order[ordinal] for ordinal in range(reached, len(self._order))],
        }
        episodes = Counter(_fates(fates))
        return Counts(
            samples=self._samples,
            groups=_accounts({fate: len(groups) for fate, groups in fates.items()}),
            episodes=_accounts({fate: episodes[fate] for fate in (*fates, "unscored")}),
        )


async def start_offline(recipe: Recipe, workers: Sequence[Worker], model: str, tell: Tell) -> OfflineTrainer:
    """Start the ranks on the policy in `model`, and read the episodes to train on."""
    file = episodes_file(str(recipe.data.episodes))
    recording = await asyncio.to_thread(read_recording, recipe, file)
    tell(recording.describe())
    if recipe.data.eval is not None:
        tell("data.eval is not evaluated: no engine is started; rlhf eval plays it with a checkpoint")
    learner = make_learner(recipe, workers)
    facts = await learner.start(learner_settings(recipe, model))
    check_fit(recording, file, vocab_size=facts["vocab_size"], context_tokens=facts["context_tokens"])
    order = TaskOrder(recording.sound, recipe.seed, recipe.data.shuffle)
    return OfflineTrainer(learner, recording, order, recipe.trainer.groups_per_update)


def read_recording(recipe: Recipe, file: Path) -> Recording:
    """The groups of `file`, sorted by how the recipe can use them. Raises `DataError` when none is left, or when they
    lack what the estimator reads."""
    sound, filtered, failed = [], [], []
    needed = 2 if needs_of(recipe.trainer).siblings else 1
    for group in recorded_groups(file):
        rewards = {score.value for _, _, score in group.trainable}
        if len(group.trainable) < max(needed, min(2, len(group.samples))):
            failed.append(group)
        elif recipe.trainer.filter.equal_rewards and len(rewards) == 1:
            filtered.append(group)
        else:
            sound.append(group)
    if not sound:
        raise DataError(f"{file} has no group to learn from: {len(failed)} failed, {len(filtered)} with equal rewards")
    if needs_of(recipe.trainer).baseline and any(group.baseline is None for group in sound):
        raise DataError(
            f"advantage.estimator {recipe.trainer.advantage.estimator} compares with a greedy episode, and groups of "
            f"{file} have none; it learns from runs with that estimator"
        )
    return Recording(sound=tuple(sound), filtered=tuple(filtered), failed=tuple(failed))


def check_fit(recording: Recording, file: Path, *, vocab_size: int, context_tokens: int) -> None:
    """Check that the tokens are in the model's vocabulary, and that no context exceeds the model's. Raises
    `DataError`."""
    for group in recording.sound:
        for _, trajectory, _ in group.trainable:
            for segment in trajectory.segments:
                if len(segment.token_ids) > context_tokens:
                    raise DataError(
                        f"{file} has an episode of {len(segment.token_ids)} tokens, longer than the model's context of "
                        f"{context_tokens}; start from the model that sampled it"
                    )
                if segment.token_ids.max() >= vocab_size:
                    raise DataError(
                        f"{file} has token {segment.token_ids.max()}, but the model knows {vocab_size} tokens; start "
                        "from a model with the vocabulary of the one that sampled it"
                    )


def _fates(groups: Mapping[str, Sequence[Group]]) -> Iterable[str]:
    """The fate of every episode: its own failure, else that of its group."""
    for fate, those in groups.items():
        yield from (_fate(sample, fate) for group in those for sample in group.samples)


def _fate(sample: Sample, of_group: str) -> str:
    if isinstance(sample.trajectory, Failed):
        return "failed"
    return "unscored" if isinstance(sample.score, Unscored) else of_group


def _accounts(fates: Mapping[str, int]) -> dict[str, int]:
    return {"admitted": sum(fates.values())} | dict(fates)
