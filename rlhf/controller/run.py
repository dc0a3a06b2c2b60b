"""One run of any kind: updates, and a list of callbacks between any two of them. Its records are closed however it
ends.

What an update is, the kind says (`rlhf.controller.rl`, `rlhf.controller.supervised`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlhf.controller.checkpoints import save_run
from rlhf.controller.closing import closed, each
from rlhf.controller.context import RunContext
from rlhf.controller.resume import plan_of
from rlhf.controller.trainer_state import TrainerState
from rlhf.protocols import Saves
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.provenance import Provenance
from rlhf.runs.summary import SAVED, SetSummary, Summary
from rlhf.runs.view import UpdateLine
from rlhf.trainer.buffer import Accounts
from rlhf.types import PolicyVersion

Metrics = Mapping[str, float]
Boundary = Callable[[PolicyVersion, Metrics | None], Awaitable[bool]]
"""Called when the weights of a version are everywhere: before the first update without metrics, then after each with
its own. True ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a run has come to: `samples` trained, groups and episodes by what became of them."""

    samples: int
    groups: Mapping[str, int] = field(default_factory=dict)
    episodes: Mapping[str, int] = field(default_factory=dict)
    max_staleness: int = 0
    seconds_to_first_update: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run stands, all at one moment: the next task's ordinal and those that are still out, what became of
    groups and episodes, and the lengths of its own record files in bytes."""

    next_ordinal: int
    outstanding: tuple[int, ...] = ()
    groups: Accounts = field(default_factory=lambda: Accounts(admitted=0, trained=0, filtered=0, failed=0, in_flight=0))
    episodes: Mapping[str, int] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long updates take: this one from the last one's end, by phase, and all that are left, in seconds."""

    seconds: float
    phase_seconds: Mapping[str, float]
    eta_seconds: float


class Learns(Saves, Protocol):
    """A learner as a run of any kind sees it."""

    async def export(self, path: Path) -> None: ...


class Kind(Protocol):
    """What a run of one kind does of its own.

    `train` makes `updates` updates and calls `boundary` between them. `evaluate` measures every held-out set, of kinds
    and recipes that have any. `count` hears of every update that is reported, also of those before a resume. `line` is
    what people see of one, `metrics` what the kind adds to what is logged, `close` the end of its own records.
    """

    @property
    def learner(self) -> Learns: ...
    @property
    def evaluates(self) -> bool: ...
    async def train(self, updates: int, boundary: Boundary) -> None: ...
    async def evaluate(self, version: PolicyVersion) -> Evaluation: ...
    def count(self, version: PolicyVersion, metrics: Metrics) -> None: ...
    def line(self, run: Run, pace: Pace) -> UpdateLine: ...
    def metrics(self) -> Metrics: ...
    def counts(self) -> Counts: ...
    def position(self) -> Position: ...
    def close(self) -> None: ...
    @property
    def callbacks(self) -> tuple[Callback, ...]: ...


class Callback:
    """Something done between updates; override what you need. All but `on_train_end` may be `async`.

    `run.metrics` are those of the update, `run.evaluation` that of this update if there was one; `run.stop(why)` makes
    this update the last one, and `run.save()` and `run.export(path)` write its weights.
    """

    async def on_train_begin(self, run: Run) -> None:
        """Before the first update of this process; a resumed run has `run.version` updates behind it."""

    async def on_step_end(self, run: Run) -> None:
        """After an update, whose weights are in the engines."""

    async def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        """After every evaluation."""

    async def on_save(self, run: Run, checkpoint: Path) -> None:
        """After a checkpoint is whole and on the disk."""

    def on_train_end(self, run: Run, summary: Summary) -> None:
        """However the run ended. `summary` is written already."""


class Run:
    """A run from its first update in this process to its summary.

    `version` updates are behind the weights; `left` says why it is to be resumed later, `stopped` why it is complete
    before its budget is spent.
    """

    def __init__(self, context: RunContext, kind: Kind, callbacks: Sequence[Callback], *, began: Provenance) -> None:
        self.context, self.kind, self.began = context, kind, began
        self.recipe, self.folder = context.recipe, context.folder
        self.clock, self.view = context.clock, context.view
        self.callbacks = tuple(callbacks)
        self.before = context.point.trainer_state if context.point else None
        self.version: PolicyVersion = context.point.version if context.point else 0
        self.saved_version: PolicyVersion | None = self.version if context.point else None
        self.metrics: dict[str, float] = {}
        self.evaluation: Evaluation | None = None
        self.evaluations = list(self.before.evaluations) if self.before else []
        self.left: str | None = None
        self.stopped: str | None = None
        self.update_began = self.clock.elapsed_seconds
        self._longest_seconds = 0.0

    @property
    def longest_seconds(self) -> float:
        """Of the longest update so far, with what followed it; of the one under way, so far."""
        return max(self._longest_seconds, self.clock.elapsed_seconds - self.update_began)

    @property
    def last(self) -> bool:
        """Whether no update follows this one in this run's life."""
        return self.version >= self.recipe.trainer.updates or self.stopped is not None

    @property
    def wall_seconds(self) -> float:
        """Of all processes of this run together."""
        return self.clock.elapsed_seconds + (self.before.wall_seconds if self.before else 0.0)

    def stop(self, why: str) -> None:
        """Make this update the last one. The first reason is the one that is told."""
        self.stopped = self.stopped or why

    async def finish(self) -> Summary:
        """Train to the end of the budget. The summary is written whatever ends it."""
        return await closed(self._train(), self._close, self.context.leaving)

    async def evaluate(self) -> None:
        """Measure the held-out sets."""
        self.evaluation = evaluation = await self.kind.evaluate(self.version)
        self.evaluations.append((self.version, evaluation))
        for callback in self.callbacks:
            await callback.on_evaluate(self, evaluation)

    async def save(self) -> None:
        """Write a checkpoint beside the earlier ones, and drop the oldest. Raises `SaveFailed`."""
        position = self.kind.position()  # with the state: groups are played on while the ranks save
        checkpoint = await save_run(
            self.folder,
            self.kind.learner,
            self._state(position),
            version=self.version,
            next_ordinal=position.next_ordinal,
            outstanding=position.outstanding,
            keep=self.recipe.trainer.keep_checkpoints,
        )
        self.saved_version = self.version
        for callback in self.callbacks:
            await callback.on_save(self, checkpoint)

    async def export(self, path: Path) -> None:
        """Write the weights as a Hugging Face folder."""
        await self.kind.learner.export(path)

    async def _train(self) -> str:
        await self.kind.train(self.recipe.trainer.updates, self._boundary)
        if self.left:
            return f"{SAVED}: {self.left}"
        return f"finished: {self.stopped}" if self.stopped else "finished"

    async def _boundary(self, version: PolicyVersion, metrics: Metrics | None) -> bool:
        self.version, self.evaluation = version, None
        begins = metrics is None
        if begins:
            for callback in self.callbacks:
                await callback.on_train_begin(self)
            metrics = self.before.metrics if self.before else None  # it was saved in the middle of this boundary
        if metrics is not None:
            await self._end_step(metrics)
        now = self.clock.elapsed_seconds
        self._longest_seconds = 0.0 if begins else max(self._longest_seconds, now - self.update_began)
        self.update_began = now
        return self.last or self.left is not None

    async def _end_step(self, metrics: Metrics) -> None:
        self.metrics = dict(metrics)
        for callback in self.callbacks:
            await callback.on_step_end(self)
        if self.stopped and self.saved_version != self.version:
            await self.save()

    def _state(self, position: Position) -> TrainerState:
        lines = {file.name: file.stat().st_size for file in (self.folder.spans, self.folder.metrics) if file.exists()}
        return TrainerState(
            plan=plan_of(self.recipe),
            groups=position.groups,
            episodes=position.episodes,
            lines={**lines, **position.lines},
            metrics=self.metrics,
            evaluations=tuple(self.evaluations),
            wall_seconds=self.wall_seconds,
            provenance=self.began,
        )

    def _close(self, outcome: str) -> Summary:
        """The summary first, and last what a third party's code has a hand in."""
        summary = self._summary(outcome)
        each(
            lambda: self.folder.write_summary(summary.as_json()),
            self.kind.close,
            *(lambda callback=callback: callback.on_train_end(self, summary) for callback in self.callbacks),
        )
        return summary

    def _summary(self, outcome: str) -> Summary:
        counts = self.kind.counts()
        evaluations = [evaluation for _, evaluation in self.evaluations]
        first = evaluations[0] if evaluations else None
        last = evaluations[-1] if len(evaluations) > 1 else None
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
            wall_seconds=round(self.wall_seconds, 2),
            seconds_to_first_update=counts.seconds_to_first_update,
            group_counts=counts.groups,
            sample_counts=counts.episodes,
            max_staleness=counts.max_staleness,
        )


def evaluations_told(first: Evaluation | None, last: Evaluation | None) -> dict[str, SetSummary]:
    """Every evaluation set by its name, with its metrics at both ends of the run."""
    ends = {one.name: one.metrics for one in last.sets} if last else {}
    return {
        one.name: SetSummary(
            problems=one.problems, distinct_answers=one.distinct_answers, start=one.metrics, end=ends.get(one.name)
        )
        for one in (first.sets if first else ())
    }
