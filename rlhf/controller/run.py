"""The run loop for all kinds of run: updates, with a list of callbacks between any two. Its records are closed in every
case.

The kind defines what an update is (`rlhf.controller.rl`, `rlhf.controller.supervised`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rlhf.controller.checkpoints import save_run
from rlhf.controller.context import RunContext
from rlhf.controller.preemption import at_first_ctrl_c
from rlhf.controller.resume import plan_of
from rlhf.controller.run_end import closed, each
from rlhf.controller.trainer_state import TrainerState
from rlhf.data.learnability import TaskChoices
from rlhf.errors import ConfigError, naming_leaks
from rlhf.protocols import Saves
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.loggers import EpisodeRow
from rlhf.runs.model_card import CARD, model_card
from rlhf.runs.provenance import Provenance
from rlhf.runs.stored_run import read_run
from rlhf.runs.summary import SAVED, SetSummary, Summary
from rlhf.runs.view import UpdateLine
from rlhf.tracing import span
from rlhf.trainer.buffer import Accounts
from rlhf.trainer.loop import Boundary
from rlhf.trainer.replay import Waiting
from rlhf.types import PolicyVersion, Updated

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counters of a run: trained `samples`, groups and episodes by outcome, and the second uses of groups."""

    samples: int
    second_uses: int = 0
    groups: Mapping[str, int] = field(default_factory=dict)
    episodes: Mapping[str, int] = field(default_factory=dict)
    max_staleness: int = 0
    seconds_to_first_update: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a run, all at one moment: the next task's ordinal and the outstanding ones, the counts of groups
    and episodes by outcome, the number of parts in each folder of episodes, the state of the task order, and the groups
    that wait for their second use."""

    next_ordinal: int
    outstanding: tuple[int, ...] = ()
    groups: Accounts = field(default_factory=lambda: Accounts(admitted=0, trained=0, filtered=0, failed=0, in_flight=0))
    episodes: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    choices: TaskChoices = field(default_factory=TaskChoices)
    second_uses: Waiting = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Durations in seconds: of this update, from the end of the last one; its phases; and the estimate for all that are
    left."""

    seconds: float
    phase_seconds: Mapping[str, float]
    eta_seconds: float


class Learns(Saves, Protocol):
    """The learner's interface for a run of any kind."""

    async def export(self, path: Path) -> None: ...


class Kind(Protocol):
    """The parts of a run that depend on its kind.

    `train` makes `updates` updates and calls `boundary` between them; it ends early where the run must end and the next
    update waits for a scorer. `evaluate` evaluates every held-out set, for kinds and recipes that have any; it returns
    None where the run must end and the evaluation waits. `line` returns the display of an update, `position` the
    position once its episodes are on disk. Its `callbacks` do everything else between updates and at the end.
    """

    @property
    def learner(self) -> Learns: ...
    @property
    def evaluates(self) -> bool: ...
    async def train(self, updates: int, boundary: Boundary) -> None: ...
    async def evaluate(self, version: PolicyVersion) -> Evaluation | None: ...
    def line(self, run: Run, pace: Pace) -> UpdateLine: ...
    def counts(self) -> Counts: ...
    async def position(self) -> Position: ...
    @property
    def callbacks(self) -> tuple[Callback, ...]: ...


class Callback:
    """User code called between updates; override the methods you need. All but `on_train_end` may be `async`.

    `run.metrics` are those of the update, `run.evaluation` that of this update if there was one; `run.stop(why)` makes
    this update the last one, and `run.save()` and `run.export(path)` write its weights.
    """

    async def on_train_begin(self, run: Run) -> None:
        """Act before the first update of this process; in a resumed run `run.version` updates precede it."""

    async def on_step_end(self, run: Run) -> None:
        """Act after an update, when its weights are in the engines."""

    async def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        """Act after every evaluation."""

    async def on_save(self, run: Run, checkpoint: Path) -> None:
        """Act after a checkpoint is complete and on disk."""

    def on_train_end(self, run: Run, summary: Summary) -> None:
        """Act after the end of the run, successful or not. `summary` is written already."""


class Run:
    """A run from its first update in this process to its summary.

    `version` is the number of updates made; `left` is why the run ends early, to be resumed; `stopped` is why it is
    complete before its budget of updates is spent.
    """

    def __init__(self, context: RunContext, kind: Kind, callbacks: Sequence[Callback], *, began: Provenance) -> None:
        self.context, self.kind, self.began = context, kind, began
        self.recipe, self.folder = context.recipe, context.folder
        self.clock, self.view = context.clock, context.view
        self.callbacks = tuple(callbacks)
        self.before = context.point.trainer_state if context.point else None
        self.version: PolicyVersion = context.point.version if context.point else 0
        self.saved_version: PolicyVersion | None = self.version if context.point else None
        self.save_seconds = 0.0
        """How long the newest checkpoint took, from the copy of the state until it was on disk."""
        self._writing: asyncio.Future[tuple[PolicyVersion, Path, float]] | None = None
        self.metrics: dict[str, float] = {}
        self.samples: Sequence[EpisodeRow] = ()
        """A few episodes of the newest update."""
        self.pace: Pace | None = None
        """The durations of the newest update of this process, once it is reported."""
        self.evaluation: Evaluation | None = None
        self.evaluations = list(self.before.evaluations) if self.before else []
        self.left: str | None = None
        self.stopped: str | None = None
        self.update_began = self.clock.elapsed_seconds
        self._longest_seconds = 0.0
        self._updating = False

    @property
    def longest_seconds(self) -> float:
        """Duration of the longest update so far, callbacks included; the current one counts up to now."""
        return max(self._longest_seconds, self.clock.elapsed_seconds - self.update_began)

    @property
    def last(self) -> bool:
        """Whether this is the last update of the whole run."""
        return self.version >= self.recipe.trainer.updates or self.stopped is not None

    @property
    def wall_seconds(self) -> float:
        """Wall time of all processes of this run together."""
        return self.clock.elapsed_seconds + (self.before.wall_seconds if self.before else 0.0)

    def stop(self, why: str) -> None:
        """Make this update the last one. The first reason given is reported."""
        self.stopped = self.stopped or why

    async def finish(self) -> Summary:
        """Train until the budget of updates is spent. The summary is written also when the run fails."""
        return await closed(naming_leaks(self._train(), "the run"), self._close, self.context.leaving)

    def check_evaluates(self) -> None:
        """Raise `ConfigError` where no evaluation can come."""
        if not self.kind.evaluates:
            kind = self.recipe.kind
            raise ConfigError(f"this run has no evaluations: data.eval is missing, or kind: {kind} does not evaluate")

    async def evaluate(self) -> None:
        """Evaluate the held-out sets now, and notify the callbacks. Raises `ConfigError` if there are none."""
        self.check_evaluates()
        self.evaluation = evaluation = await self.kind.evaluate(self.version)
        if evaluation is None:
            await self._leave()
            return
        self.evaluations.append((self.version, evaluation))
        for callback in self.callbacks:
            await callback.on_evaluate(self, evaluation)

    async def save(self) -> None:
        """Write a new checkpoint, and delete the oldest. Raises `SaveFailed`."""
        await self.begin_save()
        await self.saved()

    async def begin_save(self) -> None:
        """Copy the state for a new checkpoint, which is written while training continues, once the previous one is on
        disk. At the first boundary after its end, or in `saved`, it counts, or its failure is raised. Raises
        `SaveFailed`."""
        await self.saved()
        began = self.clock.elapsed_seconds
        position = await self.kind.position()  # with the state: more groups are played while the ranks save
        copied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        saving = save_run(
            self.folder,
            self.kind.learner,
            self._state(position),
            version=self.version,
            next_ordinal=position.next_ordinal,
            outstanding=position.outstanding,
            keep=self.recipe.trainer.keep_checkpoints,
            copied=lambda: copied.set_result(None),
        )
        self._writing = asyncio.ensure_future(self._written(saving, self.version, began))
        either: set[asyncio.Future[Any]] = {copied, self._writing}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._writing.done():
            await self.saved()

    async def saved(self) -> None:
        """Wait for the checkpoint in progress, and notify the callbacks. Raises `SaveFailed`."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        self.saved_version, checkpoint, self.save_seconds = await writing
        for callback in self.callbacks:
            await callback.on_save(self, checkpoint)

    async def export(self, path: Path) -> None:
        """Write the weights as a Hugging Face folder with a model card, which has the evaluation of this version."""
        await self.kind.learner.export(path)
        run = replace(read_run(self.folder.path), summary=asdict(self._summary("exported while it ran")))
        (path / CARD).write_text(model_card(run, path, self.version, self.began))

    async def _train(self) -> str:
        loop = asyncio.get_running_loop()  # a signal may come while the view is writing
        with at_first_ctrl_c(
            lambda: self._saves_first(lambda words: loop.call_soon_threadsafe(self.view.message, words))
        ):
            try:
                await self.kind.train(self.recipe.trainer.updates, self._boundary)
                await self.saved()
            finally:
                await self._end_writing()
        if not (self.last or self.left):
            self.metrics = {}  # this boundary is complete: a resumed run does not repeat it
            await self._leave()
        if self.left:
            return f"{SAVED}: {self.left}"
        return f"finished: {self.stopped}" if self.stopped else "finished"

    async def _leave(self) -> None:
        """End the run with a checkpoint while episodes wait for their scorer. Before the first update there is nothing
        to save."""
        self.left = self.context.leaving.reason_to_save
        await self.saved()
        if self.version > 0 and self.saved_version != self.version:
            await self.save()

    def _saves_first(self, tell: Callable[[str], object]) -> bool:
        """Whether this run, asked to end, can end with a checkpoint; if so, it does after its update."""
        finished = self.last and self.saved_version == self.version
        if not self._updating or finished or self.context.leaving.stopped:
            return False
        self.context.leaving.ask("Ctrl-C")
        tell("Ctrl-C: the run saves after this update and ends; press it again to end at once")
        return True

    async def _written(
        self, saving: Awaitable[Path], version: PolicyVersion, began: float
    ) -> tuple[PolicyVersion, Path, float]:
        """Write a checkpoint. Returns its version, its folder, and its seconds since its save `began`."""
        with span("write", version=version):
            checkpoint = await saving
        return version, checkpoint, self.clock.elapsed_seconds - began

    async def _end_writing(self) -> None:
        """Let a checkpoint finish when the run fails meanwhile; a cancelled run drops it."""
        if self._writing is None:
            return
        task = asyncio.current_task()
        if task and task.cancelling():
            self._writing.cancel()
        await asyncio.wait({self._writing})
        if not self._writing.cancelled() and (error := self._writing.exception()):
            self.view.message(str(error))

    async def _boundary(self, version: PolicyVersion, updated: Updated | None) -> bool:
        self.version, self.evaluation = version, None
        if self._writing and self._writing.done():
            await self.saved()
        begins, metrics = updated is None, updated.metrics if updated else None
        if begins:
            for callback in self.callbacks:
                await callback.on_train_begin(self)
            metrics = self.before.metrics if self.before else None  # saved in the middle of this boundary
        if metrics:
            await self._end_step(metrics)
        now = self.clock.elapsed_seconds
        self._longest_seconds = 0.0 if begins else max(self._longest_seconds, now - self.update_began)
        self.update_began, self._updating = now, True
        ends = self.last or self.left is not None
        if not ends:
            self.clock.begin_trace("update", version=version + 1)
        return ends

    async def _end_step(self, metrics: Metrics) -> None:
        self.metrics = dict(metrics)
        for callback in self.callbacks:
            await callback.on_step_end(self)
        if self.stopped:
            await self.saved()
            if self.saved_version != self.version:
                await self.save()

    def _state(self, position: Position) -> TrainerState:
        lines = {file.name: file.stat().st_size for file in (self.folder.spans, self.folder.metrics) if file.exists()}
        return TrainerState(
            plan=plan_of(self.recipe),
            groups=position.groups,
            episodes=position.episodes,
            lines=lines,
            parts=position.parts,
            metrics=dict(self.metrics),
            evaluations=tuple(self.evaluations),
            wall_seconds=self.wall_seconds,
            provenance=self.began,
            choices=position.choices,
            second_uses=position.second_uses,
        )

    def _close(self, outcome: str) -> Summary:
        """Write the summary first; call third-party code last."""
        self.clock.end_trace()
        summary = self._summary(outcome)
        each(
            lambda: self.folder.write_summary(asdict(summary)),
            *(lambda callback=callback: callback.on_train_end(self, summary) for callback in self.callbacks),
        )
        return summary

    def _summary(self, outcome: str) -> Summary:
        counts = self.kind.counts()
        evaluated = dict(self.evaluations)
        first, last = evaluated.get(0), evaluated.get(self.version) if self.version else None
        return Summary(
            name=self.recipe.name,
            outcome=outcome,
            eval_reward_start=first.reward if first else None,
            eval_reward_end=last.reward if last else None,
            eval_problems=first.problems if first and first.reward is not None else 0,
            eval_distinct_answers=first.distinct_answers if first else 0,
            evaluations=evaluations_told(first, last),
            updates=self.version,
            samples=counts.samples,
            second_uses=counts.second_uses,
            wall_seconds=round(self.wall_seconds, 2),
            seconds_to_first_update=counts.seconds_to_first_update,
            group_counts=counts.groups,
            sample_counts=counts.episodes,
            max_staleness=counts.max_staleness,
        )


def evaluations_told(first: Evaluation | None, last: Evaluation | None) -> dict[str, SetSummary]:
    """Return every evaluation set by name, with its metrics of the weights at the start and at the end of the run."""
    ends = {one.name: one.metrics for one in last.sets} if last else {}
    return {
        one.name: SetSummary(
            problems=one.problems, distinct_answers=one.distinct_answers, start=one.metrics, end=ends.get(one.name)
        )
        for one in (first.sets if first else ())
    }
