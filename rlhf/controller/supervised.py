"""Runs on a fixed dataset: the ranks learn from examples or recorded episodes, without engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

from rlhf.cluster.worker import Cluster, Worker
from rlhf.config import piece_failure
from rlhf.controller.build import spawn_learners
from rlhf.controller.context import RunContext, begun
from rlhf.controller.dataset_trainer import DatasetTrainer
from rlhf.controller.run import Callback, Counts, Pace, Position, Run
from rlhf.controller.start_model import starting_model
from rlhf.data.tasks import Tell
from rlhf.errors import Raised, catch_awaiting
from rlhf.recipe.kinds import OF_EXAMPLES, start_of
from rlhf.recipe.schema import Recipe
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.provenance import Provenance
from rlhf.runs.view import UpdateLine
from rlhf.tracing import span
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.loop import Boundary
from rlhf.types import PolicyVersion, Updated

T = TypeVar("T")
StartDataset = Callable[[Recipe, Sequence[Worker], str, Tell], Awaitable[DatasetTrainer]]
"""Starts the workers' ranks on the model's folder, loads the data, and reports to the user. A user-defined one also
receives keyword arguments."""


async def start_supervised(
    context: RunContext, cluster: Cluster, stack: AsyncExitStack
) -> tuple[LearningFromData, Provenance]:
    """Start the ranks; returns the kind, and the digests of the run's inputs."""
    recipe, view = context.recipe, context.view
    recipe = one_step_an_update(recipe) if recipe.kind in OF_EXAMPLES else recipe
    start: StartDataset = start_of(recipe.kind, recipe.kind_arguments)
    workers = await spawn_learners(recipe.cluster, cluster)
    model = await starting_model(recipe, workers, view)
    with span("start"):
        trainer = await named(start(recipe, workers, model, view.message), recipe)
    if context.point is not None:
        await trainer.resume(context.point.path)
    began = await begun(context, model)
    return LearningFromData(replace(context, recipe=recipe), trainer), began


def one_step_an_update(recipe: Recipe) -> Recipe:
    """Return the recipe with one optimizer step per update: every example is seen once per epoch of the data; an
    update's own epochs and minibatches are for RL."""
    trainer = recipe.trainer.model_copy(update={"epochs": 1, "minibatches": 1})
    return recipe.model_copy(update={"trainer": trainer})


async def named(work: Awaitable[T], recipe: Recipe) -> T:
    """Await a part of a run; an exception of a user-defined kind becomes a `PieceFailed`."""
    if not recipe.is_own_kind:
        return await work
    done = await catch_awaiting(work)
    if isinstance(done, Raised):
        raise piece_failure(done.error, recipe.kind, "kind") from done.error
    return done


class LearningFromData:
    """A `Kind` whose updates train on `trainer.groups_per_update` examples of a dataset."""

    callbacks: tuple[Callback, ...] = ()

    def __init__(self, context: RunContext, trainer: DatasetTrainer) -> None:
        self._trainer = trainer
        self._recipe = context.recipe
        self._batch_size = context.recipe.trainer.groups_per_update
        self._seconds_to_first_update = context.clock.elapsed_seconds
        self._tokens = 0

    @property
    def learner(self) -> RemoteLearner:
        return self._trainer.learner

    @property
    def evaluates(self) -> bool:
        return self._trainer.evaluates

    async def train(self, updates: int, boundary: Boundary) -> None:
        stop = await boundary(self.learner.version, None)
        while not stop:
            version = self.learner.version + 1
            with span("train", version=version):
                step = await named(self._trainer.update(), self._recipe)
            self._tokens = step.tokens
            stop = await boundary(version, Updated(metrics=step.metrics, samples=()))

    async def evaluate(self, version: PolicyVersion) -> Evaluation:
        return Evaluation(sets=await named(self._trainer.evaluate(), self._recipe))

    def line(self, run: Run, pace: Pace) -> UpdateLine:
        return UpdateLine(
            update=run.version,
            updates=run.recipe.trainer.updates,
            reward=None,
            lesson={name: run.metrics[name] for name in self._trainer.shown if name in run.metrics},
            seconds=pace.seconds,
            tokens_per_second=self._tokens / pace.seconds,
            eta_seconds=pace.eta_seconds,
            learning_rate=run.metrics.get("optimizer/learning_rate"),
        )

    def counts(self) -> Counts:
        return replace(self._trainer.counts, seconds_to_first_update=self._seconds_to_first_update)

    async def position(self) -> Position:
        return Position(next_ordinal=self.learner.version * self._batch_size)
