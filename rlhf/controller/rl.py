"""One run from its recipe to its summary: the parts are started, the loop runs, and the books are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from rlhf.cluster.watch import while_alive
from rlhf.cluster.worker import Cluster
from rlhf.controller.boundary import Resumed, UpdateBoundary
from rlhf.controller.build import (
    Serving,
    learner_settings,
    make_learner,
    make_publisher,
    spawn_learners,
    started_cluster,
    started_serving,
)
from rlhf.controller.checkpoints import save_run
from rlhf.controller.closing import closed, each
from rlhf.controller.episode_log import Ledger, group_accounts
from rlhf.controller.instrumentation import (
    ObservedBuffer,
    ObservedEvaluator,
    ObservedLearner,
    ObservedRollout,
    ObservedWeights,
)
from rlhf.controller.provenance import Provenance, provenance
from rlhf.controller.resume import ResumePoint, plan_of, reported_updates
from rlhf.controller.sitting import Sitting
from rlhf.controller.start_model import starting_model
from rlhf.controller.supervised import fine_tune_on
from rlhf.controller.trainer_state import Standing
from rlhf.data.mixing import MixedOrder
from rlhf.data.overlap import check_overlap, questions_of
from rlhf.data.tasks import conversations_of, held_out_problems, load_sets, mixed, training_tasks
from rlhf.errors import RlhfError, UserError, WorkerFailed
from rlhf.recipe.workers import ENGINE, ENVIRONMENT, LEARNER, REWARD
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.episodes import EpisodeWriter
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import make_loggers
from rlhf.runs.plot import plot_rewards
from rlhf.runs.summary import SAVED, SetSummary, Summary
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.loop import Loop
from rlhf.trainer.publish import Publisher
from rlhf.types import Task

EXPLAINED_SECONDS = 60.0
"""How long a failed engine's error is kept for the learner's."""


async def train(sitting: Sitting) -> Summary:
    """Train what the recipe says; everything is in the run folder when it returns, and when it raises."""
    recipe, folder, view = sitting.recipe, sitting.folder, sitting.view
    async with AsyncExitStack() as stack:
        roles, work = (
            ((LEARNER, ENGINE, REWARD, ENVIRONMENT), _train_on) if recipe.plays else ((LEARNER,), fine_tune_on)
        )
        cluster = await stack.enter_async_context(started_cluster(recipe, roles, folder.logs, view))
        return await while_alive(cluster, work(cluster, sitting))


async def _train_on(cluster: Cluster, sitting: Sitting) -> Summary:
    recipe, folder, clock, view = sitting.recipe, sitting.folder, sitting.clock, sitting.view
    async with AsyncExitStack() as stack:
        view.phase("start")
        train = await asyncio.to_thread(load_sets, recipe.data.train_sets)
        held_out = await asyncio.to_thread(load_sets, recipe.data.eval_sets)
        check_overlap(
            recipe.data,
            {key: questions_of(train[key], config) for key, config in recipe.data.train_sets.items()},
            {name: questions_of(held_out[name], config) for name, config in recipe.data.eval_sets.items()},
            view.message,
        )
        workers = await spawn_learners(recipe, cluster)
        model = await starting_model(recipe, workers, view)
        learner = make_learner(recipe, workers)
        with clock.span("start"):
            starting = asyncio.ensure_future(learner.start(learner_settings(recipe, model)))
            stack.callback(starting.cancel)
            if recipe.cluster.kind == "local":
                await starting  # one process has one default process group: DeepSpeed makes it, vLLM finds it
            try:
                asked = conversations_of(train, held_out)
                serving = await stack.enter_async_context(
                    started_serving(recipe, cluster, model, logs=folder.logs, publishes=True, asked=asked)
                )
            except WorkerFailed as failure:
                raise await explained(failure, starting) from None
            await starting
            if sitting.point is not None:
                await learner.load(sitting.point.path)
            publisher = await make_publisher(recipe, learner, serving)
            for words in serving.renderer.told:
                view.message(words)
            length = serving.renderer.prompt_tokens
            tasks = await asyncio.to_thread(training_tasks, recipe.data, train, length, view.message)
            problems = await asyncio.to_thread(held_out_problems, recipe.data, held_out, length, view.message)
            if opening := await serving.opening(recipe, tasks[0][0]):
                view.message(opening)
            began = await asyncio.to_thread(provenance, recipe, model)
        sitting.begin(began)
        run = RlRun(
            sitting,
            tasks=mixed(recipe.data, tasks, recipe.seed), problems=problems,
            serving=serving, learner=learner, publisher=publisher, began=began,
        )  # fmt: skip
        return await run.finish()


async def explained(failure: WorkerFailed, starting: asyncio.Future[Any]) -> RlhfError:
    """What to tell people when an engine's start failed while the learner's was `starting`: both load one model, and
    where the model is at fault the learner says how, in a `UserError`."""
    await asyncio.wait({starting}, timeout=EXPLAINED_SECONDS)
    refused = starting.exception() if starting.done() and not starting.cancelled() else None
    return refused if isinstance(refused, UserError) else failure


class RlRun:
    """A loop with its observers, and the books that are closed however it ends."""

    def __init__(
        self,
        sitting: Sitting,
        *,
        tasks: MixedOrder[Task],
        serving: Serving,
        problems: Mapping[str, Sequence[Task]],
        learner: RemoteLearner,
        publisher: Publisher,
        began: Provenance,
    ) -> None:
        recipe, folder, clock, view = sitting.recipe, sitting.folder, sitting.clock, sitting.view
        trainer, point, self.leaving = recipe.trainer, sitting.point, sitting.leaving
        self.recipe, self.folder, self.clock, self.before = recipe, folder, clock, point and point.standing
        self.began = began
        self.buffer = make_buffer(trainer, point)
        rollout = serving.rollout(
            recipe, sampling=recipe.sampling.sampling(), group_size=trainer.group_size, purpose="train"
        )
        self.ledger = Ledger(folder, rollout.samples, self.before.episodes if self.before else {})
        self.loggers = make_loggers(recipe.run.loggers, folder, recipe.name, recipe.model_dump(mode="json"))
        self.spans = JsonlWriter(folder.spans, may_write=folder.check)
        self.learner = ObservedLearner(learner, clock=clock, ledger=self.ledger, view=view, version=learner.version)
        self.evaluations = EpisodeWriter(folder.evaluations, may_write=folder.check)
        evaluator = serving.evaluator(recipe, problems)
        self.boundary = UpdateBoundary(
            config=trainer,
            clock=clock,
            view=view,
            loggers=self.loggers,
            spans=self.spans,
            buffer=self.buffer,
            evaluator=evaluator and ObservedEvaluator(evaluator, records=self.evaluations),
            checkpoint=self.checkpoint,
            canary_difference=lambda: publisher.canary_difference,
            leaving=self.leaving.reason,
            resumed=resumed_boundary(folder, self.before) if self.before else None,
        )
        self.loop = Loop(
            tasks=tasks,
            rollout=ObservedRollout(rollout, clock=clock, ledger=self.ledger),
            buffer=ObservedBuffer(self.buffer, clock=clock, ledger=self.ledger),
            learner=self.learner,
            weights=ObservedWeights(publisher, clock=clock, view=view),
            boundary=self.boundary,
            players=recipe.rollout.players or trainer.tickets,
        )

    async def finish(self) -> Summary:
        """Run the loop to its end. The summary is written whatever ends it."""
        return await closed(self.run(), self.close, self.leaving)

    async def run(self) -> str:
        """Train to the end of the budget, or until the run must leave: how it ended, in words."""
        await self.loop.run(self.recipe.trainer.updates)
        return f"{SAVED}: {self.boundary.left}" if self.boundary.left else "finished"

    def close(self, outcome: str) -> Summary:
        """Write what is still unwritten: the summary first, and last what a third party's code has a hand in."""
        summary = self.summary(outcome)
        each(
            lambda: self.folder.write_summary(summary.as_json()),
            self.ledger.close,
            self.evaluations.close,
            lambda: self.boundary.write_spans(self.clock.drain()),
            self.spans.close,
            self.loggers.close,
            self.plot,
        )
        return summary

    def plot(self) -> None:
        """Draw the rewards."""
        self.folder.check()
        evaluations = [(version, evaluation.reward) for version, evaluation in self.boundary.evaluations]
        plot_rewards(self.folder.reward_plot, self.boundary.rewards, evaluations, self.recipe.name)

    def summary(self, outcome: str) -> Summary:
        evaluations = [evaluation for _, evaluation in self.boundary.evaluations]
        first = evaluations[0] if evaluations else None
        last = evaluations[-1] if len(evaluations) > 1 else None
        return Summary(
            name=self.recipe.name,
            outcome=outcome,
            eval_reward_start=first.reward if first else None,
            eval_reward_end=last.reward if last else None,
            eval_problems=first.problems if first else 0,
            eval_distinct_answers=first.distinct_answers if first else 0,
            evaluations=evaluations_told(first, last),
            updates=self.loop.version,
            samples=self.boundary.samples,
            wall_seconds=round(self.wall_seconds, 2),
            seconds_to_first_update=self.learner.seconds_to_first_update,
            group_accounts=group_accounts(self.buffer),
            sample_accounts=self.ledger.sample_accounts,
            max_staleness=int(self.boundary.max_staleness),
        )

    @property
    def wall_seconds(self) -> float:
        """Of all sittings together."""
        return self.clock.elapsed_seconds + (self.before.wall_seconds if self.before else 0.0)

    async def checkpoint(self, version: int, metrics: Mapping[str, float]) -> None:
        """Write a checkpoint beside the earlier ones, and drop the oldest."""
        await save_run(
            self.folder,
            self.learner,
            self.standing(metrics),
            version=version,
            next_ordinal=self.buffer.next_ordinal,
            outstanding=self.buffer.outstanding,
            keep=self.recipe.trainer.keep_checkpoints,
        )

    def standing(self, metrics: Mapping[str, float]) -> Standing:
        """All at one moment: players go on while the ranks save."""
        return Standing(
            plan=plan_of(self.recipe),
            groups=self.buffer.settled_accounts,
            episodes=self.ledger.fates,
            lines={
                self.folder.episodes.name: self.ledger.written_bytes,
                self.folder.evaluations.name: self.evaluations.written_bytes,
                self.folder.spans.name: self.spans.written_bytes,
                self.folder.metrics.name: self.folder.metrics.stat().st_size,
            },
            metrics=metrics,
            evaluations=tuple(self.boundary.evaluations),
            wall_seconds=self.wall_seconds,
            provenance=self.began,
        )


def resumed_boundary(folder: RunFolder, before: Standing) -> Resumed:
    return Resumed(metrics=before.metrics, reported=reported_updates(folder), evaluations=before.evaluations)


def evaluations_told(first: Evaluation | None, last: Evaluation | None) -> dict[str, SetSummary]:
    """Every evaluation set by its name, with its metrics at both ends of the run."""
    ends = {one.name: one.metrics for one in last.sets} if last else {}
    return {
        one.name: SetSummary(
            problems=one.problems, distinct_answers=one.distinct_answers, start=one.metrics, end=ends.get(one.name)
        )
        for one in (first.sets if first else ())
    }


def make_buffer(config: TrainerConfig, point: ResumePoint | None) -> TicketBuffer:
    return TicketBuffer(
        groups_per_update=config.groups_per_update,
        max_staleness=config.max_staleness,
        updates=config.updates,
        refill_groups=config.refill_groups,
        failure_budget=config.failure_budget,
        version=point.version if point else 0,
        next_ordinal=point.manifest.next_ordinal if point else 0,
        reissue=point.manifest.outstanding if point else (),
        accounts=point.standing.groups if point else None,
    )
