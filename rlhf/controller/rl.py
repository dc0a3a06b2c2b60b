"""Reinforcement learning as a kind of run: engines play episodes, the learner trains, and its weights are
synced back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import Any

from rlhf.chat.format_choice import told_of_tools
from rlhf.cluster.worker import Cluster
from rlhf.controller.build import (
    Serving,
    context_reached,
    keeper_of,
    make_league,
    make_learner,
    make_publisher,
    spawn_learners,
    start_ranks,
    started_serving,
)
from rlhf.controller.context import RunContext, begun
from rlhf.controller.device_turns import DeviceTurns
from rlhf.controller.episode_log import EpisodeLog
from rlhf.controller.event_loop_latency import responsive_event_loop
from rlhf.controller.resume import ResumePoint, reported_updates
from rlhf.controller.run import Callback, Counts, Metrics, Pace, Position, Run
from rlhf.controller.run_end import each
from rlhf.controller.start_model import keep_adapters, starting_model, with_own_models
from rlhf.controller.user_messages import (
    BatchNotices,
    LossNotices,
    OpeningNotices,
    ReplyNotices,
    SampleEpisodes,
    SignalNotices,
)
from rlhf.data.learnability import ChosenTasks
from rlhf.data.overlap import check_overlap, questions_of
from rlhf.data.tasks import asking_tasks, chosen_tasks, held_out_problems, load_sets, training_tasks
from rlhf.errors import RlhfError, UserError, WorkerFailed
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import engine_roles, learner_starts_first
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.episode_parts import EpisodeParts
from rlhf.runs.episode_records import ended_in_evaluation
from rlhf.runs.folder import RunFolder
from rlhf.runs.image_files import FeaturesOf, image_folder, with_features
from rlhf.runs.plot import plot_rewards
from rlhf.runs.provenance import Provenance
from rlhf.runs.recorded_episodes import groups_again
from rlhf.runs.summary import Summary
from rlhf.runs.view import UpdateLine
from rlhf.tracing import span
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.registry import needs_of
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.loop import Boundary, GroupLog, Loop
from rlhf.trainer.replay import GroupReplay
from rlhf.types import Failed, Filtered, Group, PolicyVersion, Task, Ticket, Updated
from rlhf.weight_sync.publish import Publisher

ASK_SECONDS = 1.0
"""Interval between checks whether a waiting run must end."""
PROGRESS_SECONDS = 15.0
"""Interval between reports of a run that waits for groups."""
EXPLAINED_SECONDS = 60.0
"""How long to wait for the learner's error after an engine's start has failed."""


async def start_rl(context: RunContext, cluster: Cluster, stack: AsyncExitStack) -> tuple[Playing, Provenance]:
    """Start and verify everything that plays and learns, and return it with the inputs it began with. The `stack` gets
    everything that must be ended."""
    recipe, view, logs, tell = context.recipe, context.view, context.folder.logs, context.view.message
    train = await asyncio.to_thread(load_sets, recipe.data.train_sets, asks=recipe.tasks_ask)
    held_out = await asyncio.to_thread(load_sets, recipe.data.eval_sets, asks=recipe.tasks_ask)
    check_overlap(
        recipe.data,
        {key: questions_of(train[key], config) for key, config in recipe.data.train_sets.items()},
        {name: questions_of(held_out[name], config) for name, config in recipe.data.eval_sets.items()},
        tell,
    )
    workers = await spawn_learners(recipe.cluster, cluster)
    models = {base: await starting_model(recipe.of_base(base), workers, view) for base in recipe.bases}
    model, recipe = models[""], with_own_models(recipe, models)
    recipe = keep_adapters(recipe, context.folder.path / "adapters", resumed=context.point is not None)
    context = replace(context, recipe=recipe)
    league = make_league(recipe, context.folder.path / "league")
    learner = make_learner(recipe, workers, league)
    with span("start"):
        starting = asyncio.ensure_future(start_learner(context, learner, model))
        stack.callback(starting.cancel)
        if learner_starts_first(recipe):
            await starting
        try:
            asked, seat = asking_tasks(train, held_out), league.seat if league else None
            serving = await stack.enter_async_context(
                started_serving(recipe, cluster, model, logs=logs, publishes=True, tell=tell, asked=asked, seat=seat)
            )
        except WorkerFailed as failure:
            raise await explain_start_failure(failure, starting) from None
        await starting
        await asyncio.to_thread(serving.renderer.tokenizer.save_pretrained, context.folder.tokenizer)
        for words in (*serving.renderer.told, *(told_of_tools(serving.renderer) if recipe.agent else ())):
            tell(words)
        length = serving.renderer.prompt_tokens
        most = serving.facts.max_context_tokens if recipe.tasks_ask else None
        data, seed = recipe.data, recipe.seed
        tasks = await asyncio.to_thread(training_tasks, data, train, length, tell, seed=seed, context=most)
        problems = await asyncio.to_thread(held_out_problems, data, held_out, length, tell, seed=seed, context=most)
        if opening := await serving.opening(recipe.seed, tasks[0][0]):
            tell(opening)
        reached = context_reached(recipe, tasks, length, serving.facts.max_context_tokens)
        publisher, phases = await make_publisher(recipe, learner, serving, reached), None
        if recipe.cluster.placement == "colocated":
            phases = DeviceTurns(learner, publisher, serving.engines)
        began = await begun(context, model)
    if all(role.replaced for role in engine_roles(recipe)):
        for router in serving.router.routers:
            keeper = keeper_of(recipe, cluster, router, publisher, tell)
            await stack.enter_async_context(keeper.keeping(router.engines))
    choices = context.point.trainer_state.choices if context.point else None
    playing = Playing(
        context, tasks=chosen_tasks(recipe.data, tasks, recipe.seed, choices), problems=problems,
        serving=serving, learner=phases or learner, publisher=phases or publisher,
    )  # fmt: skip
    return playing, began


async def start_learner(context: RunContext, learner: RemoteLearner, model: str) -> None:
    """Start the ranks, and continue from the checkpoint of a resumed run. Where engines share their GPUs, the ranks
    keep only their weights there, which the first weight sync sends."""
    await start_ranks(learner, context.recipe, model, context.view.message)
    if context.point is not None:
        await learner.load(context.point.path)
    if context.recipe.cluster.placement == "colocated":
        await learner.hold("weights")


async def explain_start_failure(failure: WorkerFailed, starting: asyncio.Future[Any]) -> RlhfError:
    """Return the error to report when an engine's start failed while the learner's was `starting`: both load the same
    model, and where the model is the cause the learner raises a more specific `UserError`."""
    await asyncio.wait({starting}, timeout=EXPLAINED_SECONDS)
    refused = starting.exception() if starting.done() and not starting.cancelled() else None
    return refused if isinstance(refused, UserError) else failure


class Playing(Callback, GroupLog):
    """A `Kind` whose updates learn from episodes that engines play: a `Loop`, its records and its notices."""

    def __init__(
        self,
        context: RunContext,
        *,
        tasks: ChosenTasks[Task],
        serving: Serving,
        problems: Mapping[str, Sequence[Task]],
        learner: RemoteLearner | DeviceTurns,
        publisher: Publisher | DeviceTurns,
    ) -> None:
        recipe, folder, self._clock, view = context.recipe, context.folder, context.clock, context.view
        before = context.point.trainer_state if context.point else None
        self.learner, self._publisher, self._folder, self._tasks = learner, publisher, folder, tasks
        self._outages, self._leaving = serving.outages, context.leaving
        waiting = waiting_groups(folder, context.point, view.message, serving.renderer.features_of)
        self._buffer = make_buffer(recipe.trainer, context.point, waiting)
        rollout = serving.rollout(
            recipe.sampling.sampling(),
            group_size=recipe.trainer.group_size,
            purpose="train",
            seed=recipe.seed,
            filter_equal_rewards=recipe.trainer.filter.equal_rewards,
            greedy_baseline=needs_of(recipe.trainer).baseline,
        )
        self._episodes = EpisodeLog(folder, rollout.samples, before.episodes if before else {})
        self._evaluations = EpisodeParts(folder.evaluations, may_write=folder.check)
        max_tokens = recipe.sampling.max_tokens
        self._evaluator = serving.evaluator(recipe.data, problems, max_tokens=max_tokens, seed=recipe.seed)
        self._evaluating: asyncio.Future[Evaluation] = asyncio.get_running_loop().create_future()
        self._tell, self._losses = view.message, LossNotices(view.message, folder.logs)
        self._samples_shown = SampleEpisodes()
        self._notices = [*batch_notices(recipe, view.message), self._samples_shown]
        self._rewards: list[tuple[PolicyVersion, float]] = []
        self._max_staleness, self._samples, self._second_uses = 0.0, 0, 0
        for version, metrics in reported_updates(folder) if before else ():
            self.count(version, metrics)
        self._loop = Loop(
            tasks=tasks,
            rollout=rollout,
            buffer=self._buffer,
            learner=learner,
            weights=publisher,
            max_concurrent_groups=recipe.rollout.max_concurrent_groups or recipe.trainer.tickets,
            log=self,
        )

    @property
    def evaluates(self) -> bool:
        return self._evaluator is not None

    async def train(self, updates: int, boundary: Boundary) -> None:
        watching = asyncio.ensure_future(self._watch())
        try:
            with responsive_event_loop():
                await self._loop.run(updates, boundary)
        finally:
            watching.cancel()

    async def evaluate(self, version: PolicyVersion) -> Evaluation | None:
        """Evaluate, and record the episodes, which are then released: a run keeps the metrics of all evaluations."""
        assert self._evaluator is not None, "asked of a recipe that holds problems out"
        self._evaluating = asyncio.ensure_future(self._evaluator(version))
        try:
            await asyncio.wait([self._evaluating])
        finally:
            self._evaluating.cancel()
        if self._evaluating.cancelled():
            return None
        evaluation = self._evaluating.result()
        for result in evaluation.sets:
            self._evaluations.add(*ended_in_evaluation(result.groups, result.name))
            for group in result.groups:
                self._losses.notice(group)
        self._evaluations.cut()
        return Evaluation(sets=tuple(replace(result, groups=()) for result in evaluation.sets))

    def admitted(self, ticket: Ticket, task: Task) -> None:
        self._episodes.admitted(ticket, task)

    def settled(self, ticket: Ticket, outcome: Group | Filtered | Failed, *, kept: bool) -> None:
        self._episodes.settled(ticket, outcome, kept=kept)
        self._losses.notice(outcome)

    def trained(self, groups: Sequence[Group], updated: Updated, update: PolicyVersion) -> None:
        self._episodes.trained(groups, updated, update)
        own = [group for group in groups if not group.second_use]
        for notices in self._notices:
            notices.notice(update, own, updated.metrics)

    async def _watch(self) -> None:
        """While the learner waits for groups, report how many it has; end this wait, and an evaluation, if the run must
        end."""
        waited = 0.0
        while True:
            await asyncio.sleep(ASK_SECONDS)
            waited = waited + ASK_SECONDS if self._buffer.awaited else 0.0
            if self._leaves():
                self._evaluating.cancel()
                if waited:
                    self._buffer.end()
            if waited >= PROGRESS_SECONDS:
                waited = 0.0
                self._tell(self._buffer.progress)

    def _leaves(self) -> bool:
        """Whether the run must end now, while episodes wait for their scorer: a resumed run replays them."""
        return bool(self._outages.out) and self._leaving.reason_to_save is not None

    def count(self, version: PolicyVersion, metrics: Metrics) -> None:
        self._rewards.append((version, metrics["reward/mean"]))
        self._max_staleness = max(self._max_staleness, metrics["staleness/max"])
        self._samples += int(metrics["samples/trained"])
        self._second_uses += int(metrics.get("replay/groups", 0))

    def line(self, run: Run, pace: Pace) -> UpdateLine:
        metrics, accounts = run.metrics, self._buffer.accounts

        def largest(name: str) -> float | None:
            """Return a metric; where several policies have it, the largest of theirs."""
            names = (f"{policy}/{name}".removeprefix("/") for policy in run.recipe.trained_policies)
            return max((metrics[one] for one in names if one in metrics), default=None)

        clipped = (largest(name) or 0.0 for name in ("policy/clip_fraction_low", "policy/clip_fraction_high"))
        return UpdateLine(
            update=run.version,
            updates=run.recipe.trainer.updates,
            reward=metrics["reward/mean"],
            eval_reward=run.evaluation.reward if run.evaluation else None,
            staleness=metrics["staleness/mean"],
            seconds=pace.seconds,
            phase_seconds=pace.phase_seconds,
            tokens_per_second=metrics["tokens/trained"] / pace.seconds,
            eta_seconds=pace.eta_seconds,
            learning_rate=largest("optimizer/learning_rate"),
            kl=largest("policy/approx_kl"),
            kl_reference=largest("policy/kl_reference"),
            clip_fraction=sum(clipped),
            failed=accounts.failed,
            lost=self._buffer.lost_samples,
            filtered=accounts.filtered,
        )

    async def on_step_end(self, run: Run) -> None:
        self.count(run.version, run.metrics)
        accounts = self._buffer.accounts
        run.samples = self._samples_shown.rows
        run.metrics |= {
            "groups/failed": float(accounts.failed),
            "groups/filtered": float(accounts.filtered),
            "weight_sync/logprob_difference": self._publisher.logprob_difference,
        }

    def on_train_end(self, run: Run, summary: Summary) -> None:
        """Close the records, and plot the rewards of training and of evaluations."""
        each(self._episodes.close, self._evaluations.close, lambda: self._plot(run))

    def _plot(self, run: Run) -> None:
        run.folder.check()
        evaluations = [(version, one.reward) for version, one in run.evaluations if one.reward is not None]
        plot_rewards(run.folder.reward_plot, self._rewards, evaluations, run.recipe.name)

    def counts(self) -> Counts:
        return Counts(
            samples=self._samples,
            second_uses=self._second_uses,
            groups=asdict(self._buffer.accounts),
            episodes=self._episodes.sample_counts,
            max_staleness=int(self._max_staleness),
            seconds_to_first_update=self._clock.first_began.get("train"),
        )

    async def position(self) -> Position:
        position = Position(
            next_ordinal=self._buffer.next_ordinal,
            outstanding=self._buffer.outstanding,
            groups=self._buffer.settled_accounts,
            episodes=self._episodes.outcomes,
            parts={
                self._folder.episodes.name: self._episodes.cut(),
                self._folder.evaluations.name: self._evaluations.cut(),
            },
            choices=self._tasks.choices(self._buffer.newest_taken),
            second_uses=self._buffer.waiting,
        )
        await self._episodes.written()
        await self._evaluations.written()
        return position

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        return (self,)


def batch_notices(recipe: Recipe, tell: Callable[[str], None]) -> list[BatchNotices]:
    """Return the notes about this recipe's batches."""
    notices: list[BatchNotices] = []
    if recipe.agent is None or recipe.agent.program:  # a command may name its folder, which differs
        notices.append(OpeningNotices(tell))
    if recipe.run.show_replies:
        notices.append(ReplyNotices(tell))
    if recipe.reward.kind != "none":
        needs = needs_of(recipe.trainer)
        notices.append(SignalNotices(tell, siblings=needs.siblings))
    return notices


def waiting_groups(
    folder: RunFolder, point: ResumePoint | None, tell: Callable[[str], None], features_of: FeaturesOf | None = None
) -> list[tuple[PolicyVersion, Group]]:
    """Return the groups that waited for their second use at a checkpoint, from their records, each with the update that
    trained it first. Report those whose records are lost. Raises `DataError` for a lost image."""
    waiting = point.trainer_state.second_uses if point else ()
    found = groups_again(folder.episodes, {ordinal for _, ordinal in waiting})
    if features_of:
        place = image_folder(folder.episodes)
        found = {ordinal: with_features(group, place, features_of) for ordinal, group in found.items()}
    if lost := len(waiting) - len(found):
        tell(f"{lost} groups waited for their second use, but their records are lost: the run continues without them")
    return [(update, found[ordinal]) for update, ordinal in waiting if ordinal in found]


def make_buffer(
    config: TrainerConfig, point: ResumePoint | None, waiting: Iterable[tuple[int, Group]] = ()
) -> TicketBuffer:
    """Return the buffer of the run; after a resume, with the accounts and outstanding ordinals of the checkpoint, and
    the groups `waiting` for their second use."""
    return TicketBuffer(
        groups_per_update=config.groups_per_update,
        max_staleness=config.max_staleness,
        updates=config.updates,
        refill_groups=config.refill_groups,
        failure_budget=config.failure_budget,
        version=point.version if point else 0,
        next_ordinal=point.manifest.next_ordinal if point else 0,
        reissue=point.manifest.outstanding if point else (),
        accounts=point.trainer_state.groups if point else None,
        replay=GroupReplay(config.replay, waiting),
    )
