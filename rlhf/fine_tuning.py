"""A run of kind `sft`: the ranks imitate demonstrations; no engine, no reward, the same run folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice

from rlhf.boundary import due
from rlhf.cluster.worker import Cluster
from rlhf.data.order import TaskOrder
from rlhf.data.sorting import demonstrations
from rlhf.data.sources import load_tasks
from rlhf.errors import DataError
from rlhf.metrics import Clock
from rlhf.recipe import Recipe
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import make_loggers
from rlhf.runs.summary import Summary
from rlhf.runs.view import UpdateLine, View
from rlhf.trainer.checkpoint import prune, write_checkpoint
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.sft import demonstration_batch
from rlhf.types import Message, Segment
from rlhf.warmup import starting_model
from rlhf.wiring import learner_settings, make_learner, spawn_learners

Demonstration = tuple[tuple[Message, ...], str]
"""What is asked, and the reply to imitate."""


async def fine_tune_on(cluster: Cluster, recipe: Recipe, folder: RunFolder, clock: Clock, view: View) -> Summary:
    """Start the ranks, imitate `trainer.groups_per_update` demonstrations an update, and leave a checkpoint."""
    view.phase("start")
    recipe = one_step_an_update(recipe)
    workers = await spawn_learners(recipe, cluster)
    model = await starting_model(recipe, workers, view)
    learner = make_learner(recipe, workers)
    with clock.span("start"):
        facts = await learner.start(learner_settings(recipe, model))
        lessons = await asyncio.to_thread(rendered, recipe, model, facts["context_tokens"])
    return await SftRun(recipe, folder, clock, view, learner=learner, lessons=lessons).finish()


def one_step_an_update(recipe: Recipe) -> Recipe:
    """Every demonstration is seen once an epoch of the data: an update's own epochs and minibatches are for RL."""
    trainer = recipe.trainer.model_copy(update={"epochs": 1, "minibatches": 1})
    return recipe.model_copy(update={"trainer": trainer})


def demonstrations_of(recipe: Recipe) -> Iterator[Demonstration]:
    """As many as the run needs: those of the made task, or the dataset's rows in the order of tasks."""
    train, count = recipe.data.train, recipe.trainer.updates * recipe.trainer.groups_per_update
    if train.sorting:
        yield from demonstrations(train.sorting, count, recipe.seed)
        return
    assert train.response_column is not None, "the recipe was checked"
    order = TaskOrder(load_tasks(train), recipe.seed, recipe.data.shuffle)
    for ordinal in range(count):
        yield order[ordinal].messages, str(order[ordinal].row[train.response_column])


def rendered(recipe: Recipe, model: str, context_tokens: int) -> Iterator[Segment]:
    """The demonstrations as tokens. Raises `DataError` for one that is longer than the model's context."""
    from rlhf.models.chat import demonstration
    from rlhf.models.loading import load_tokenizer

    tokenizer = load_tokenizer(model, trust_remote_code=recipe.model.trust_remote_code)

    def segments() -> Iterator[Segment]:
        for messages, response in demonstrations_of(recipe):
            segment = demonstration(tokenizer, messages, response)
            if len(segment.token_ids) > context_tokens:
                raise DataError(
                    f"a demonstration of {len(segment.token_ids)} tokens is longer than the model's context of "
                    f"{context_tokens}; shorten or drop it (it begins {messages[-1].content[:40]!r})"
                )
            yield segment

    return segments()


class SftRun:
    """Update by update, with the books that are closed however it ends."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        clock: Clock,
        view: View,
        *,
        learner: RemoteLearner,
        lessons: Iterator[Segment],
    ) -> None:
        self.recipe, self.folder, self.clock, self.view = recipe, folder, clock, view
        self.learner, self.lessons = learner, lessons
        self.loggers = make_loggers(recipe.run.loggers, folder, recipe.name, recipe.model_dump(mode="json"))
        self.spans = JsonlWriter(folder.spans)
        self.began = self.update_began = clock.elapsed_seconds

    async def finish(self) -> Summary:
        """Imitate to the end of the budget. The summary is written whatever ends it."""
        outcome = "finished"
        try:
            for version in range(1, self.recipe.trainer.updates + 1):
                await self.update(version)
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            outcome = str(error) or "stopped"  # a death cancels with its words, a person without any
            raise
        except BaseException as error:
            outcome = str(error)
            raise
        finally:
            summary = self.close(outcome)
        return summary

    async def update(self, version: int) -> None:
        """One optimizer step, and a checkpoint where it is due."""
        trainer = self.recipe.trainer
        self.view.phase("train")
        with self.clock.span("train", version=version):
            lessons = list(islice(self.lessons, trainer.groups_per_update))
            metrics = await self.learner.imitate(demonstration_batch(lessons))
        if version == trainer.updates or due(version, trainer.save_every):
            self.view.phase("save")
            with self.clock.span("save", version=version):
                await self.checkpoint(version)
        self.report(version, metrics, sum(int(lesson.action_mask.sum()) for lesson in lessons))

    async def checkpoint(self, version: int) -> None:
        await write_checkpoint(
            self.folder.checkpoints,
            version=version,
            next_ordinal=version * self.recipe.trainer.groups_per_update,
            outstanding=(),
            save=self.learner.save,
        )
        prune(self.folder.checkpoints, self.recipe.trainer.keep_checkpoints)

    def report(self, version: int, metrics: Mapping[str, float], tokens: int) -> None:
        """Show and log the update; `tokens` are those of the replies."""
        updates, now = self.recipe.trainer.updates, self.clock.elapsed_seconds
        seconds, self.update_began = now - self.update_began, now
        self.view.update(
            UpdateLine(
                update=version,
                updates=updates,
                reward=None,
                nll=metrics["nll"],
                seconds=seconds,
                tokens_per_second=tokens / seconds,
                eta_seconds=(now - self.began) / version * (updates - version),
                learning_rate=metrics["learning_rate"],
            )
        )
        self.loggers.log(version, dict(metrics) | {"seconds/update": seconds})
        self.spans.write(span.record for span in self.clock.drain())

    def close(self, outcome: str) -> Summary:
        """Write what is still unwritten."""
        summary = Summary(
            name=self.recipe.name,
            outcome=outcome,
            updates=self.learner.version,
            samples=self.learner.version * self.recipe.trainer.groups_per_update,
            wall_seconds=round(self.clock.elapsed_seconds, 2),
            seconds_to_first_update=self.began,
        )
        self.folder.write_summary(summary.as_json())
        self.spans.write(span.record for span in self.clock.drain())
        self.spans.close()
        self.loggers.close()
        return summary
