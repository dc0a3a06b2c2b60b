"""What happens between two updates: numbers are shown and logged, the policy is evaluated, a checkpoint is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from rlhf.data.config import HELD_OUT
from rlhf.rollout.evaluation import Evaluation, SetResult
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import Loggers
from rlhf.runs.tracing import Clock, Span, busy_seconds
from rlhf.runs.view import EvaluationLine, UpdateLine, View
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.config import TrainerConfig
from rlhf.types import PolicyVersion, Updated

Evaluate = Callable[[PolicyVersion], Awaitable[Evaluation]]
PHASES = {"generate": "wait", "train": "train", "publish": "publish", "evaluate": "evaluate", "save": "save"}
"""What people read of an update's time: the seconds the learner waited for groups stand for generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What was before the checkpoint: the `metrics` of its update, those of all earlier ones, and the evaluations."""

    metrics: Mapping[str, float]
    reported: Iterable[tuple[PolicyVersion, Mapping[str, float]]]
    evaluations: Iterable[tuple[PolicyVersion, Evaluation]]


class UpdateBoundary:
    """The loop calls it after every publish: before the first update with no outcome, then once an update.

    A run that is resumed begins where the checkpoint was written, in the middle of a boundary: `resumed` is what is
    left of it to do.
    """

    def __init__(
        self,
        *,
        config: TrainerConfig,
        clock: Clock,
        view: View,
        loggers: Loggers,
        spans: JsonlWriter,
        buffer: TicketBuffer,
        evaluator: Evaluate | None,
        checkpoint: Callable[[PolicyVersion, Mapping[str, float]], Awaitable[None]],
        canary_difference: Callable[[], float],
        leaving: Callable[[float], str | None] = lambda seconds: None,
        resumed: Resumed | None = None,
    ) -> None:
        """`leaving` says why the run must save and end now, if an update of so many seconds is too long."""
        self._config, self._clock, self._view = config, clock, view
        self._loggers, self._spans, self._buffer = loggers, spans, buffer
        self._evaluator, self._checkpoint = evaluator, checkpoint
        self._canary_difference = canary_difference
        self._update_began = self._learning_began = clock.elapsed_seconds
        self._first_version: PolicyVersion = 0
        self._leaving, self._resumed = leaving, resumed
        self._longest_seconds = 0.0
        self.left: str | None = None
        """Why the run ended before its budget was spent."""
        self.evaluations: list[tuple[PolicyVersion, Evaluation]] = list(resumed.evaluations) if resumed else []
        self.rewards: list[tuple[PolicyVersion, float]] = []
        self.max_staleness = 0.0
        self.samples = 0
        for before, metrics in resumed.reported if resumed else ():
            self._count(before, metrics)

    async def __call__(self, version: PolicyVersion, updated: Updated | None) -> bool:
        if updated is None:
            return await self._begin(version)
        last = version >= self._config.updates
        self.left = None if last else self._must_leave()
        if last or self.left or due(version, self._config.save_every):  # first of all: an evaluation may fail
            self._view.phase("save")
            await self._checkpoint(version, updated.metrics)
        await self._close(version, updated.metrics)
        return last or self.left is not None

    async def _begin(self, version: PolicyVersion) -> bool:
        """Before the first update: an evaluation, or the rest of the boundary at which the run was saved."""
        self._first_version = version
        last = version >= self._config.updates
        self.left = None if last else self._must_leave()
        if self._resumed is not None:
            await self._close(version, self._resumed.metrics)
        elif self.left is None:
            await self._evaluate(version)
        self.write_spans(self._clock.drain())
        self._longest_seconds = 0.0
        self._learning_began = self._update_began = self._clock.elapsed_seconds
        return last or self.left is not None

    async def _close(self, version: PolicyVersion, metrics: Mapping[str, float]) -> None:
        """What follows the checkpoint. A run that leaves has no time for it, and does it when it is resumed."""
        due_now = version >= self._config.updates or due(version, self._config.eval_every)
        evaluated = await self._evaluate(version) if due_now and self.left is None else None
        self._report(version, metrics, evaluated)

    def _must_leave(self) -> str | None:
        """Asked with half as much again as the longest update took, boundary included."""
        now = self._clock.elapsed_seconds
        return self._leaving(1.5 * max(self._longest_seconds, now - self._update_began))

    async def _evaluate(self, version: PolicyVersion) -> Evaluation | None:
        if self._evaluator is None:
            return None
        self._view.phase("evaluate")
        with self._clock.span("evaluate", version=version):
            evaluation = await self._evaluator(version)
        self.evaluations.append((version, evaluation))
        for one in evaluation.sets:
            self._view.evaluation(evaluation_line(version, one))
        return evaluation

    def _report(self, version: PolicyVersion, metrics: Mapping[str, float], evaluated: Evaluation | None) -> None:
        spans = self._clock.drain()
        now = self._clock.elapsed_seconds
        seconds, self._update_began = now - self._update_began, now
        self._longest_seconds = max(self._longest_seconds, seconds)
        phases = phase_seconds(spans)
        self._count(version, metrics)
        self._view.update(self._line(version, metrics, evaluated, seconds, phases))
        self._loggers.log(version, self._logged(metrics, evaluated, seconds, phases))
        self.write_spans(spans)

    def _count(self, version: PolicyVersion, metrics: Mapping[str, float]) -> None:
        self.rewards.append((version, metrics["reward/mean"]))
        self.max_staleness = max(self.max_staleness, metrics["staleness/max"])
        self.samples += int(metrics["samples/trained"])

    def _line(
        self,
        version: PolicyVersion,
        metrics: Mapping[str, float],
        evaluated: Evaluation | None,
        seconds: float,
        phases: Mapping[str, float],
    ) -> UpdateLine:
        accounts = self._buffer.accounts
        per_update = (self._update_began - self._learning_began) / max(version - self._first_version, 1)
        return UpdateLine(
            update=version,
            updates=self._config.updates,
            reward=metrics["reward/mean"],
            eval_reward=evaluated.reward if evaluated else None,
            staleness=metrics["staleness/mean"],
            seconds=seconds,
            phase_seconds=phases,
            tokens_per_second=metrics["tokens/trained"] / seconds,
            eta_seconds=per_update * (self._config.updates - version),
            learning_rate=metrics.get("learning_rate"),
            kl=metrics.get("approx_kl"),
            kl_reference=metrics.get("kl_reference"),
            clip_fraction=metrics.get("clip_fraction_low", 0.0) + metrics.get("clip_fraction_high", 0.0),
            failed=accounts.failed,
            lost=self._buffer.lost_samples,
            filtered=accounts.filtered,
        )

    def _logged(
        self,
        metrics: Mapping[str, float],
        evaluated: Evaluation | None,
        seconds: float,
        phases: Mapping[str, float],
    ) -> dict[str, float]:
        accounts = self._buffer.accounts
        counts = {"groups/failed": float(accounts.failed), "groups/filtered": float(accounts.filtered)}
        times = {f"seconds/{name}": value for name, value in phases.items()} | {"seconds/update": seconds}
        evaluation = evaluated.metrics if evaluated else {}
        proof = {"publish/canary_difference": self._canary_difference()}
        return dict(metrics) | times | counts | proof | evaluation

    def write_spans(self, spans: list[Span]) -> None:
        self._spans.write(span.record for span in spans)
        self._spans.flush()


def evaluation_line(version: PolicyVersion, result: SetResult) -> EvaluationLine:
    """What people are shown of one set: its reward, and the metrics that the recipe asked for beside it."""
    return EvaluationLine(
        update=version,
        name="" if result.name == HELD_OUT else result.name,
        reward=result.reward,
        problems=result.problems,
        metrics={name: value for name, value in result.metrics.items() if name.startswith(("pass@", "maj@"))},
    )


def due(version: PolicyVersion, every: int) -> bool:
    """Whether something done every so many updates is done after this one; 0 is never."""
    return every > 0 and version % every == 0


def phase_seconds(spans: list[Span]) -> dict[str, float]:
    """Seconds of wall time by phase, in the order of an update."""
    busy = busy_seconds(spans)
    return {phase: busy[name] for phase, name in PHASES.items() if name in busy}
