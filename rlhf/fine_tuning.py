"""A run without engines: the ranks learn from examples or from recorded episodes, in the same run folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from rlhf.boundary import due
from rlhf.cluster.worker import Cluster, Worker
from rlhf.data.tasks import Tell
from rlhf.imitation import begin_imitation
from rlhf.metrics import Clock
from rlhf.offline import begin_replay
from rlhf.preferences import begin_comparison
from rlhf.recipe import Recipe
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import make_loggers
from rlhf.runs.summary import SetSummary, Summary
from rlhf.runs.view import UpdateLine, View
from rlhf.sitting import Sitting
from rlhf.study import HeldOut, Lesson, Study
from rlhf.trainer.checkpoint import prune, write_checkpoint
from rlhf.warmup import starting_model
from rlhf.wiring import spawn_learners

BEGINNINGS: Mapping[str, Callable[[Recipe, Sequence[Worker], str, Tell], Awaitable[Study]]] = {
    "sft": begin_imitation,
    "reward_model": begin_comparison,
    "preference": begin_comparison,
    "offline": begin_replay,
}
"""How each kind of run starts its ranks on a model's folder and finds its examples."""


async def fine_tune_on(cluster: Cluster, sitting: Sitting) -> Summary:
    """Start the ranks, learn from `trainer.groups_per_update` examples an update, and leave a checkpoint."""
    recipe, folder, clock, view = sitting.recipe, sitting.folder, sitting.clock, sitting.view
    view.phase("start")
    recipe = recipe if recipe.kind == "offline" else one_step_an_update(recipe)
    workers = await spawn_learners(recipe, cluster)
    model = await starting_model(recipe, workers, view)
    with clock.span("start"):
        study = await BEGINNINGS[recipe.kind](recipe, workers, model, view.message)
    return await StudyRun(recipe, folder, clock, view, study).finish()


def one_step_an_update(recipe: Recipe) -> Recipe:
    """Every example is seen once an epoch of the data: an update's own epochs and minibatches are for RL."""
    trainer = recipe.trainer.model_copy(update={"epochs": 1, "minibatches": 1})
    return recipe.model_copy(update={"trainer": trainer})


class StudyRun:
    """Update by update, with the books that are closed however it ends."""

    def __init__(self, recipe: Recipe, folder: RunFolder, clock: Clock, view: View, study: Study) -> None:
        self.recipe, self.folder, self.clock, self.view, self.study = recipe, folder, clock, view, study
        self.evaluations: list[dict[str, HeldOut]] = []
        self.loggers = make_loggers(recipe.run.loggers, folder, recipe.name, recipe.model_dump(mode="json"))
        self.spans = JsonlWriter(folder.spans)
        self.began = self.update_began = clock.elapsed_seconds

    async def finish(self) -> Summary:
        """Learn to the end of the budget. The summary is written whatever ends it."""
        outcome = "finished"
        try:
            await self.evaluate(0)
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
        """Learn, and write a checkpoint and evaluate where they are due."""
        trainer = self.recipe.trainer
        self.view.phase("train")
        with self.clock.span("train", version=version):
            lesson = await self.study.update()
        last = version == trainer.updates
        if last or due(version, trainer.save_every):  # first of all: an evaluation may fail
            self.view.phase("save")
            with self.clock.span("save", version=version):
                await self.checkpoint(version)
        evaluated = await self.evaluate(version) if last or due(version, trainer.eval_every) else {}
        self.report(version, lesson, evaluated)

    async def evaluate(self, version: int) -> dict[str, HeldOut]:
        """Every evaluation set, told to people."""
        with self.clock.span("evaluate", version=version):
            evaluated = await self.study.evaluate()
        self.evaluations.append(evaluated)
        for name, held_out in evaluated.items():
            told = "  ".join(f"{metric} {value:.3f}" for metric, value in held_out.metrics.items())
            self.view.message(f"{name} after update {version}  {told}  pairs {held_out.examples}")
        return evaluated

    async def checkpoint(self, version: int) -> None:
        await write_checkpoint(
            self.folder.checkpoints,
            version=version,
            next_ordinal=version * self.recipe.trainer.groups_per_update,
            outstanding=(),
            save=self.study.learner.save,
        )
        prune(self.folder.checkpoints, self.recipe.trainer.keep_checkpoints)

    def report(self, version: int, lesson: Lesson, evaluated: Mapping[str, HeldOut]) -> None:
        """Show and log the update."""
        updates, now = self.recipe.trainer.updates, self.clock.elapsed_seconds
        seconds, self.update_began = now - self.update_began, now
        self.view.update(
            UpdateLine(
                update=version,
                updates=updates,
                reward=None,
                lesson={name: lesson.metrics[name] for name in lesson.watched if name in lesson.metrics},
                seconds=seconds,
                tokens_per_second=lesson.tokens / seconds,
                eta_seconds=(now - self.began) / version * (updates - version),
                learning_rate=lesson.metrics.get("learning_rate"),
            )
        )
        held_out = {f"eval/{name}/{metric}": v for name, one in evaluated.items() for metric, v in one.metrics.items()}
        self.loggers.log(version, dict(lesson.metrics) | held_out | {"seconds/update": seconds})
        self.spans.write(span.record for span in self.clock.drain())

    def close(self, outcome: str) -> Summary:
        """Write what is still unwritten."""
        books = self.study.books
        summary = Summary(
            name=self.recipe.name,
            outcome=outcome,
            evaluations=evaluations_told(self.evaluations),
            updates=self.study.learner.version,
            samples=books.examples,
            wall_seconds=round(self.clock.elapsed_seconds, 2),
            seconds_to_first_update=self.began,
            group_accounts=books.groups,
            sample_accounts=books.episodes,
        )
        self.folder.write_summary(summary.as_json())
        self.spans.write(span.record for span in self.clock.drain())
        self.spans.close()
        self.loggers.close()
        return summary


def evaluations_told(evaluations: Sequence[Mapping[str, HeldOut]]) -> dict[str, SetSummary]:
    """Every evaluation set by its name, with its metrics at both ends of the run."""
    first, last = (evaluations[0], evaluations[-1]) if evaluations else ({}, {})
    return {
        name: SetSummary(
            problems=one.examples,
            distinct_answers=0,
            start=one.metrics,
            end=last[name].metrics if len(evaluations) > 1 else None,
        )
        for name, one in first.items()
    }
