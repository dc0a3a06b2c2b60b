"""Built-in callbacks between updates: end in time, save, evaluate, display, log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rlhf.controller.resume import IDLE, TIMES
from rlhf.controller.run import Callback, Pace, Run
from rlhf.controller.user_messages import AlarmNotices
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import Loggers
from rlhf.runs.overview import evaluation_line
from rlhf.runs.summary import Summary
from rlhf.runs.view import View
from rlhf.tracing import Span, busy_seconds, span
from rlhf.trainer.config import FIRST_SAVE_SECONDS, WAITS_PER_SAVE
from rlhf.types import PolicyVersion

PHASES = {"generate": "wait", "train": "train", "weight_sync": "weight_sync", "evaluate": "evaluate", "save": "save"}
"""Displayed phases, with the span of each. The time that the learner waits for groups is displayed as generation."""
CANARY = f"{PHASES['weight_sync']}/canary"
"""A span within that of the weight sync."""
ROOM = 1.5
"""Time reserved for the next update and checkpoint, as a multiple of the longest update so far with its callbacks, and
of the last checkpoint."""


class Preemption(Callback):
    """Ends the run with a checkpoint while its job still has time for one."""

    async def on_train_begin(self, run: Run) -> None:
        await self.on_step_end(run)

    async def on_step_end(self, run: Run) -> None:
        needed = ROOM * (run.longest_seconds + run.save_seconds)
        run.left = None if run.last else run.context.leaving.reason(needed)


class Checkpoints(Callback):
    """Writes a checkpoint every `save_every` updates and every `save_every_minutes`, while the next update runs; after
    the last update, and when the run ends early, the run waits for it.

    With `auto` it waits `WAITS_PER_SAVE` times as long after a checkpoint as that took to write. Only the controller
    decides, and a checkpoint changes nothing in the run, so a resumed run repeats it whenever it saved.
    """

    def __init__(self) -> None:
        self._began_at, self._due_at = 0.0, 0.0

    async def on_train_begin(self, run: Run) -> None:
        self._began_at = run.clock.elapsed_seconds
        self._due_at = self._began_at + FIRST_SAVE_SECONDS

    async def on_step_end(self, run: Run) -> None:
        ends = run.last or run.left is not None
        if (ends or self._is_due(run)) and run.saved_version != run.version:
            self._began_at, self._due_at = run.clock.elapsed_seconds, math.inf
            with span("save", version=run.version):
                await (run.save() if ends else run.begin_save())

    async def on_save(self, run: Run, checkpoint: Path) -> None:
        self._due_at = self._began_at + (1 + WAITS_PER_SAVE) * run.save_seconds

    def _is_due(self, run: Run) -> bool:
        trainer, now = run.recipe.trainer, run.clock.elapsed_seconds
        if trainer.save_every_minutes and now >= self._began_at + 60 * trainer.save_every_minutes:
            return True
        return now >= self._due_at if trainer.save_every == "auto" else due(run.version, trainer.save_every)


class Evaluations(Callback):
    """Evaluates the held-out sets before the first update, every `eval_every` updates, and after the last. A run that
    ends early skips it, and evaluates when it is resumed. Runs after the checkpoint, since an evaluation may fail."""

    async def on_train_begin(self, run: Run) -> None:
        if run.before is None:
            await self._evaluate(run)

    async def on_step_end(self, run: Run) -> None:
        if run.last or due(run.version, run.recipe.trainer.eval_every):
            await self._evaluate(run)

    async def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        for one in evaluation.sets:
            run.view.evaluation(evaluation_line(run.version, one.name, one.reward, one.metrics, one.problems))

    async def _evaluate(self, run: Run) -> None:
        if run.left or not run.kind.evaluates:
            return
        with span("evaluate", version=run.version):
            await run.evaluate()


class Reports(Callback):
    """Displays every update, logs its metrics, and writes its time spans."""

    def __init__(self, loggers: Loggers, spans: JsonlWriter, table_every: int) -> None:
        self._loggers, self._spans, self._table_every = loggers, spans, table_every
        self._first_version: PolicyVersion = 0
        self._began = 0.0

    async def on_train_begin(self, run: Run) -> None:
        self._alarms = AlarmNotices(run.view.message, run.recipe.model_dump(mode="json"))
        self._write(run.clock.drain())
        self._first_version, self._began = run.version, run.clock.elapsed_seconds

    async def on_step_end(self, run: Run) -> None:
        spans = run.clock.drain()
        point = run.context.point
        times = point.times if point and run.version == self._first_version else self._shown(run, spans)
        evaluation = run.evaluation.metrics if run.evaluation else {}
        metrics = {**run.metrics, **times, **evaluation}
        self._loggers.log(run.version, metrics)
        self._alarms.notice(run.version, metrics)
        if due(run.version, self._table_every):
            self._loggers.log_episodes(run.version, run.samples)
        self._write(spans)

    def on_train_end(self, run: Run, summary: Summary) -> None:
        self._write(run.clock.drain())
        self._spans.close()
        self._loggers.close()

    def _shown(self, run: Run, spans: Sequence[Span]) -> dict[str, float]:
        """Display an update of this process, and return its times. One from before a resume keeps those it had."""
        pace = run.pace = self._pace(run, spans)
        run.view.update(run.kind.line(run, pace))
        phases = {f"{TIMES}{name}": value for name, value in pace.phase_seconds.items()}
        idle = {f"{IDLE}{cause}": share for cause, share in idle_shares(spans, pace.seconds).items()}
        return phases | {f"{TIMES}update": pace.seconds} | idle

    def _pace(self, run: Run, spans: Sequence[Span]) -> Pace:
        now = run.clock.elapsed_seconds
        seconds = now - run.update_began
        per_update = (now - self._began) / max(run.version - self._first_version, 1)
        left = 0 if run.stopped else run.recipe.trainer.updates - run.version
        return Pace(seconds=seconds, phase_seconds=phase_seconds(spans), eta_seconds=per_update * left)

    def _write(self, spans: Sequence[Span]) -> None:
        self._spans.write(span.record for span in spans)
        self._spans.flush()


def show_phase(view: View, name: str) -> None:
    """Show the phase that begins with a span of that name."""
    for phase in (phase for phase, of_phase in PHASES.items() if of_phase == name):
        view.phase(phase)


def due(version: PolicyVersion, every: int) -> bool:
    """Whether something done every `every` updates is due after this one; 0 means never."""
    return every > 0 and version % every == 0


def phase_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Return the seconds of wall time by phase, in the order of an update."""
    busy = busy_seconds(spans)
    return {phase: busy[name] for phase, name in PHASES.items() if name in busy}


def idle_shares(spans: Sequence[Span], seconds: float) -> dict[str, float]:
    """Return the share of an update of `seconds` in which the learner trained nothing: `all`, and by cause."""
    busy = dict.fromkeys((*PHASES.values(), CANARY), 0.0) | busy_seconds(spans)
    causes = {
        "groups": busy["wait"],
        "weight_sync": busy["weight_sync"] - busy[CANARY],
        "canary": busy[CANARY],
        "callbacks": busy["evaluate"] + busy["save"],
    }
    idle = seconds - busy["train"]
    causes |= {"controller": idle - sum(causes.values()), "all": idle}
    return {cause: max(spent, 0.0) / seconds for cause, spent in causes.items()} if seconds > 0 else {}
