"""A run without engines: the ranks learn from examples or from recorded episodes, in the same run folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlhf.cluster.worker import Cluster, Worker
from rlhf.controller.boundary import due
from rlhf.controller.build import spawn_learners
from rlhf.controller.checkpoints import save_run
from rlhf.controller.closing import closed, each
from rlhf.controller.dataset_trainer import HeldOut, Lesson, Study
from rlhf.controller.offline import begin_replay
from rlhf.controller.preference import begin_comparison
from rlhf.controller.provenance import Provenance, provenance
from rlhf.controller.resume import plan_of
from rlhf.controller.sft import begin_imitation
from rlhf.controller.sitting import Sitting
from rlhf.controller.start_model import starting_model
from rlhf.controller.trainer_state import Standing
from rlhf.data.tasks import Tell
from rlhf.recipe.schema import Recipe
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import make_loggers
from rlhf.runs.summary import SAVED, SetSummary, Summary
from rlhf.runs.view import UpdateLine
from rlhf.trainer.buffer import Accounts
from rlhf.types import PolicyVersion

BEGINNINGS: Mapping[str, Callable[[Recipe, Sequence[Worker], str, Tell], Awaitable[Study]]] = {
    "sft": begin_imitation,
    "reward_model": begin_comparison,
    "preference": begin_comparison,
    "offline": begin_replay,
}
"""How each kind of run starts its ranks on a model's folder and finds its examples."""


async def fine_tune_on(cluster: Cluster, sitting: Sitting) -> Summary:
    """Start the ranks, learn from `trainer.groups_per_update` examples an update, and leave a checkpoint."""
    view, recipe = sitting.view, sitting.recipe
    view.phase("start")
    recipe = recipe if recipe.kind == "offline" else one_step_an_update(recipe)
    workers = await spawn_learners(recipe, cluster)
    model = await starting_model(recipe, workers, view)
    with sitting.clock.span("start"):
        study = await BEGINNINGS[recipe.kind](recipe, workers, model, view.message)
        began = await asyncio.to_thread(provenance, recipe, model)
    if sitting.point is not None:
        await study.resume(sitting.point.path)
    sitting.begin(began)
    return await StudyRun(recipe, sitting, study, began).finish()


def one_step_an_update(recipe: Recipe) -> Recipe:
    """Every example is seen once an epoch of the data: an update's own epochs and minibatches are for RL."""
    trainer = recipe.trainer.model_copy(update={"epochs": 1, "minibatches": 1})
    return recipe.model_copy(update={"trainer": trainer})


class StudyRun:
    """Update by update, with the books that are closed however it ends."""

    def __init__(self, recipe: Recipe, sitting: Sitting, study: Study, began: Provenance) -> None:
        folder, clock = sitting.folder, sitting.clock
        self.recipe, self.folder, self.clock, self.view, self.study = recipe, folder, clock, sitting.view, study
        self.leaving, self.before = sitting.leaving, sitting.point.standing if sitting.point else None
        self.first: PolicyVersion = sitting.point.version if sitting.point else 0
        self.left: str | None = None
        self.began = began
        self.longest_seconds = 0.0
        self.evaluations = [heard(one) for one in self.before.held_out] if self.before else []
        self.loggers = make_loggers(recipe.run.loggers, folder, recipe.name, recipe.model_dump(mode="json"))
        self.spans = JsonlWriter(folder.spans, may_write=folder.check)
        self.seconds_to_begin = self.update_began = clock.elapsed_seconds

    async def finish(self) -> Summary:
        """Learn to the end of the budget. The summary is written whatever ends it."""
        return await closed(self.run(), self.close, self.leaving)

    async def run(self) -> str:
        """How it ended, in words."""
        await self.learn()
        return f"{SAVED}: {self.left}" if self.left else "finished"

    async def learn(self) -> None:
        """Update by update, until the budget is spent or the run must leave."""
        if self.before is None:
            await self.evaluate(0)
        else:  # the checkpoint was written in the middle of this update's end
            await self.end_update(self.first, Lesson(metrics=self.before.metrics, watched=(), tokens=0))
        for version in range(self.first + 1, self.recipe.trainer.updates + 1):
            await self.update(version)
            if self.left:
                return

    async def update(self, version: int) -> None:
        """Learn, and write a checkpoint and evaluate where they are due."""
        trainer = self.recipe.trainer
        self.view.phase("train")
        with self.clock.span("train", version=version):
            lesson = await self.study.update()
        last = version == trainer.updates
        self.left = None if last else self.must_leave()
        if last or self.left or due(version, trainer.save_every):  # first of all: an evaluation may fail
            self.view.phase("save")
            with self.clock.span("save", version=version):
                await self.checkpoint(version, lesson.metrics)
        await self.end_update(version, lesson)

    def must_leave(self) -> str | None:
        """Asked with half as much again as the longest update took, checkpoint and evaluation included."""
        return self.leaving.reason(1.5 * max(self.longest_seconds, self.clock.elapsed_seconds - self.update_began))

    async def end_update(self, version: int, lesson: Lesson) -> None:
        """What follows the checkpoint. A run that leaves has no time for an evaluation: its resume has."""
        due_now = version == self.recipe.trainer.updates or due(version, self.recipe.trainer.eval_every)
        evaluated = await self.evaluate(version) if due_now and not self.left else {}
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

    async def checkpoint(self, version: int, metrics: Mapping[str, float]) -> None:
        standing = Standing(
            plan=plan_of(self.recipe),
            groups=Accounts(admitted=0, trained=0, filtered=0, failed=0, in_flight=0),
            episodes={},
            lines={
                self.folder.spans.name: self.spans.written_bytes,
                self.folder.metrics.name: self.folder.metrics.stat().st_size,
            },
            metrics=metrics,
            evaluations=(),
            held_out=tuple({name: asdict(one) for name, one in sets.items()} for sets in self.evaluations),
            wall_seconds=self.wall_seconds,
            provenance=self.began,
        )
        await save_run(
            self.folder,
            self.study.learner,
            standing,
            version=version,
            next_ordinal=version * self.recipe.trainer.groups_per_update,
            outstanding=(),
            keep=self.recipe.trainer.keep_checkpoints,
        )

    def report(self, version: int, lesson: Lesson, evaluated: Mapping[str, HeldOut]) -> None:
        """Show and log the update."""
        updates, now = self.recipe.trainer.updates, self.clock.elapsed_seconds
        seconds, self.update_began = now - self.update_began, now
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.view.update(
            UpdateLine(
                update=version,
                updates=updates,
                reward=None,
                lesson={name: lesson.metrics[name] for name in lesson.watched if name in lesson.metrics},
                seconds=seconds,
                tokens_per_second=lesson.tokens / seconds,
                eta_seconds=(now - self.seconds_to_begin) / max(version - self.first, 1) * (updates - version),
                learning_rate=lesson.metrics.get("learning_rate"),
            )
        )
        held_out = {f"eval/{name}/{metric}": v for name, one in evaluated.items() for metric, v in one.metrics.items()}
        self.loggers.log(version, dict(lesson.metrics) | held_out | {"seconds/update": seconds})
        self.spans.write(span.record for span in self.clock.drain())

    @property
    def wall_seconds(self) -> float:
        """Of all sittings together."""
        return self.clock.elapsed_seconds + (self.before.wall_seconds if self.before else 0.0)

    def close(self, outcome: str) -> Summary:
        """Write what is still unwritten, the summary first."""
        books = self.study.books
        summary = Summary(
            name=self.recipe.name,
            outcome=outcome,
            evaluations=evaluations_told(self.evaluations),
            updates=self.study.learner.version,
            samples=books.examples,
            wall_seconds=round(self.wall_seconds, 2),
            seconds_to_first_update=self.seconds_to_begin,
            group_accounts=books.groups,
            sample_accounts=books.episodes,
        )
        each(
            lambda: self.folder.write_summary(summary.as_json()),
            lambda: self.spans.write(span.record for span in self.clock.drain()),
            self.spans.close,
            self.loggers.close,
        )
        return summary


def heard(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, HeldOut]:
    """An evaluation as its checkpoint has it."""
    return {name: HeldOut(**one) for name, one in sets.items()}


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
