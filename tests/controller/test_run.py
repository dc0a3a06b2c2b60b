"""A run of any kind: what is done between updates, in which order, and what callbacks of one's own can do."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from collections.abc import Callable, Coroutine, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlhf.controller import preemption
from rlhf.controller.callbacks import Checkpoints, Evaluations, Preemption, idle_shares
from rlhf.controller.context import RunContext, begin, run_folder
from rlhf.controller.preemption import Leaving
from rlhf.controller.provided_callbacks import BestCheckpoint, EarlyStopping
from rlhf.controller.run import Callback, Counts, Pace, Position, Run
from rlhf.controller.train import reports
from rlhf.controller.trainer_state import read_trainer_state
from rlhf.controller.user_callbacks import user_callbacks
from rlhf.durable import synced
from rlhf.errors import CallbackFailed, ConfigError, SaveFailed, TrainingDiverged
from rlhf.recipe.loading import recipe_from
from rlhf.rollout.evaluation import Evaluation, EvaluationFailed, SetResult
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.loggers import EpisodeRow
from rlhf.runs.summary import Summary
from rlhf.runs.view import PlainView, UpdateLine
from rlhf.tracing import Clock, Span
from rlhf.trainer.checkpoint import checkpoints
from rlhf.trainer.loop import Boundary
from rlhf.types import Updated
from tests.runs.test_loggers import Kept
from tests.small_tasks import sorting

SORTING = {"model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"}}


def result(name: str, reward: float, **metrics: float) -> SetResult:
    return SetResult(name=name, reward=reward, problems=4, distinct_answers=2, metrics={"avg@1": reward} | metrics)


class FakeLearner:
    def __init__(self) -> None:
        self.version = 0
        self.saved: list[int] = []
        self.exported: list[int] = []

    async def snapshot(self, path: Path) -> Coroutine[Any, Any, dict[str, Any]]:
        self.saved.append(self.version)
        return self.write(path, self.version)

    async def write(self, path: Path, version: int) -> dict[str, Any]:
        (path / "weights").write_text(str(version))
        return synced(path, [path / "weights"])

    async def export(self, path: Path) -> None:
        self.exported.append(self.version)
        path.mkdir()
        (path / "config.json").write_text("{}")
        (path / "weights").write_text(str(self.version))


class FakeKind(Callback):
    """Updates that only count; `rewards` of evaluations come one after the other, the last one for ever."""

    def __init__(self, *rewards: float, version: int = 0) -> None:
        self.learner, self.rewards, self.asked = FakeLearner(), list(rewards), []
        self.learner.version = version
        self.counted: list[int] = []
        self.closed = False
        self.sets: Callable[[float], tuple[SetResult, ...]] = lambda reward: (result("held_out", reward),)

    @property
    def evaluates(self) -> bool:
        return bool(self.rewards)

    async def train(self, updates: int, boundary: Boundary) -> None:
        stop = await boundary(self.learner.version, None)
        while not stop:
            self.learner.version += 1
            stop = await boundary(self.learner.version, Updated(metrics={"loss": 1 / self.learner.version}, samples=()))

    async def evaluate(self, version: int) -> Evaluation:
        self.asked.append(version)
        return Evaluation(sets=self.sets(self.rewards.pop(0) if len(self.rewards) > 1 else self.rewards[0]))

    async def on_step_end(self, run: Run) -> None:
        self.counted.append(run.version)
        run.samples = (EpisodeRow("t", "1+1", "2", 1.0, "terminated", 3),)

    def line(self, run: Run, pace: Pace) -> UpdateLine:
        return UpdateLine(update=run.version, updates=run.recipe.trainer.updates, reward=None, lesson=run.metrics)

    def counts(self) -> Counts:
        return Counts(samples=self.learner.version)

    async def position(self) -> Position:
        return Position(next_ordinal=self.learner.version)

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        return (self,)

    def on_train_end(self, run: Run, summary: Summary) -> None:
        self.closed = True


class Made:
    """A run in a folder over a fake kind, and what it shows."""

    def __init__(
        self,
        folder: Path,
        kind: FakeKind,
        *callbacks: Callback,
        leaving: Leaving | None = None,
        resume: bool = False,
        clock: Clock | None = None,
        loggers: Sequence[str] = (),
        **trainer: int,
    ) -> None:
        recipe = recipe_from(
            {
                **SORTING, "name": "t",
                "run": {"dir": str(folder), "loggers": loggers}, "trainer": {"updates": 3, "group_size": 2, **trainer},
            }
        )  # fmt: skip
        self.folder, point = run_folder(recipe.recipe, resume=resume, tell=lambda words: None)
        if point is None:
            self.folder.write_recipe(recipe.recipe, recipe.origins)
        self.kind, self.shown = kind, StringIO()
        context = RunContext(
            recipe=recipe.recipe, folder=self.folder, clock=clock or Clock(), view=PlainView(self.shown), point=point,
            leaving=leaving or Leaving(),
        )  # fmt: skip
        begin(context, {})
        self.kind.learner.version = point.version if point else 0
        own = user_callbacks((), callbacks)
        self.run = Run(
            context,
            kind,
            (Preemption(), Checkpoints(), *kind.callbacks, *own, Evaluations(), reports(context)),
            began={},
        )

    async def finish(self) -> Summary:
        try:
            return await self.run.finish()
        finally:
            self.folder.give_back()

    def logged(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.folder.metrics))


async def test_the_last_weights_are_saved_even_if_their_evaluation_fails(tmp_path: Path) -> None:
    class Fails(FakeKind):
        async def evaluate(self, version: int) -> Evaluation:
            if version == 3:
                raise EvaluationFailed("a scorer hung")
            return await super().evaluate(version)

    made = Made(tmp_path / "run", Fails(0.5))
    with pytest.raises(EvaluationFailed):
        await made.finish()
    assert made.kind.learner.saved == [3]
    assert made.kind.closed
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "a scorer hung"


async def test_what_comes_every_few_updates_comes_after_these_and_after_the_last(tmp_path: Path) -> None:
    made = Made(tmp_path / "run", FakeKind(0.5), save_every=2, eval_every=2)
    summary = await made.finish()
    assert (made.kind.learner.saved, made.kind.asked, made.kind.counted) == ([2, 3], [0, 2, 3], [1, 2, 3])
    assert (summary.outcome, summary.updates, summary.samples) == ("finished", 3, 3)


async def test_every_evaluation_set_is_shown_and_logged_by_its_name(tmp_path: Path) -> None:
    kind = FakeKind(0.5)
    kind.sets = lambda reward: (result("easy", 0.75), result("hard", 0.25, **{"pass@8": 0.5, "unscored": 0.0}))
    made = Made(tmp_path / "run", kind)
    await made.finish()
    assert {key: value for key, value in made.logged()[-1].items() if key.startswith("eval/")} == {
        "eval/reward": 0.75, "eval/easy/avg@1": 0.75, "eval/hard/avg@1": 0.25, "eval/hard/pass@8": 0.5,
        "eval/hard/unscored": 0.0,
    }  # fmt: skip
    assert "evaluation after update 3  hard  reward 0.250  pass@8 0.500  problems 4\n" in made.shown.getvalue()


async def test_one_set_without_a_name_is_shown_without_one_and_pairs_without_a_reward(tmp_path: Path) -> None:
    kind = FakeKind(0.75)
    made = Made(tmp_path / "run", kind)
    await made.finish()
    assert "evaluation after update 0  reward 0.750  problems 4\n" in made.shown.getvalue()
    kind = FakeKind(0.75)
    kind.sets = lambda reward: (SetResult(name="held_out", problems=7, metrics={"accuracy": reward}),)
    made = Made(tmp_path / "pairs", kind)
    summary = await made.finish()
    assert "evaluation after update 0  accuracy 0.750  pairs 7\n" in made.shown.getvalue()
    assert "eval/reward" not in made.logged()[-1]
    assert summary.eval_reward_end is None


async def test_weights_that_were_not_evaluated_have_no_evaluation_of_earlier_ones(tmp_path: Path) -> None:
    class Fails(Callback):
        async def on_step_end(self, run: Run) -> None:
            if run.version == 2:
                raise OSError("no space")

    made = Made(tmp_path / "run", FakeKind(0.25, 0.5), Fails(), eval_every=1)
    with pytest.raises(CallbackFailed):
        await made.finish()
    summary = json.loads(made.folder.summary.read_text())
    assert [line.get("eval/reward") for line in made.logged()] == [0.5]
    assert (summary["updates"], summary["eval_reward_start"], summary["eval_reward_end"]) == (2, 0.25, None)
    assert summary["evaluations"]["held_out"]["end"] is None


async def test_a_run_that_must_leave_saves_and_its_resume_does_what_was_left(tmp_path: Path) -> None:
    leaving = Leaving()

    class Asks(Callback):
        async def on_train_begin(self, run: Run) -> None:
            leaving.ask("SIGUSR1")

    made = Made(tmp_path / "run", FakeKind(0.5), Asks(), leaving=leaving)
    made.kind.learner.version = 0
    summary = await made.finish()
    assert (summary.outcome, summary.saved, made.kind.learner.saved, made.kind.asked) == (
        "saved: SIGUSR1", True, [1], [0],
    )  # fmt: skip
    (before,) = made.logged()
    again = Made(tmp_path / "run", FakeKind(0.75), resume=True, eval_every=1)
    summary = await again.finish()
    assert again.logged()[0] == before | {"time": again.logged()[0]["time"]} | again.run.evaluations[1][1].metrics
    assert [line[:10] for line in again.shown.getvalue().splitlines() if line.startswith("update")] == [
        "update 2/3", "update 3/3",
    ]  # fmt: skip
    assert (again.kind.asked, again.kind.learner.saved) == ([1, 2, 3], [3])
    assert [line["update"] for line in again.logged()] == [1, 2, 3]
    evaluations = [(version, one.reward) for version, one in again.run.evaluations]
    assert evaluations == [(0, 0.5), (1, 0.75), (2, 0.75), (3, 0.75)]
    assert (summary.eval_reward_start, summary.eval_reward_end) == (0.5, 0.75)


class CtrlC(Callback):
    """Presses Ctrl-C at the start (version 0) or after updates."""

    def __init__(self, *versions: int) -> None:
        self.versions = versions

    async def on_train_begin(self, run: Run) -> None:
        self.press(run)

    async def on_step_end(self, run: Run) -> None:
        self.press(run)

    def press(self, run: Run) -> None:
        for _ in range(self.versions.count(run.version)):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("pressed", "echo_seconds", "stopping", "saved", "usual"),
    [
        ((1,), 0.0, False, [2], 0),
        ((1, 1), 60.0, False, [2], 0),
        ((1, 1), 0.0, False, [2], 1),
        ((1, 2), 0.0, False, [2], 1),
        ((0,), 0.0, False, [9], 1),
        ((9,), 0.0, False, [9], 1),
        ((1,), 0.0, True, [9], 1),
    ],
    ids=["first-saves", "echo", "second-ends", "second-later", "before-the-first-update", "all-is-saved", "sigterm"],
)
async def test_the_first_ctrl_c_saves_after_its_update_and_the_next_has_its_usual_effect(
    pressed: tuple[int, ...],
    echo_seconds: float,
    stopping: bool,
    saved: list[int],
    usual: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemption, "ECHO_SECONDS", echo_seconds)
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    leaving = Leaving()
    leaving.stopped = stopping
    try:
        made = Made(tmp_path / "run", FakeKind(), CtrlC(*pressed), leaving=leaving, updates=9)
        summary = await made.finish()
        assert (made.kind.learner.saved, len(heard)) == (saved, usual)
        assert summary.saved == (saved == [2])
        assert ("the run saves after this update and ends" in made.shown.getvalue()) == (saved == [2])
        signal.raise_signal(signal.SIGINT)
        assert len(heard) == usual + 1, "the handler of before is back"
    finally:
        signal.signal(signal.SIGINT, before)


class Slow(FakeLearner):
    """Its checkpoints are on disk when the learner has made the update `until`; those from `broken` on never are."""

    def __init__(self, until: int, broken: int = 9) -> None:
        super().__init__()
        self.until, self.broken, self.writing = until, broken, 0

    async def write(self, path: Path, version: int) -> dict[str, Any]:
        self.writing += 1
        assert self.writing == 1, "one at a time"
        while self.version < self.until:
            await asyncio.sleep(0.001)
        self.writing -= 1
        if version >= self.broken:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return await super().write(path, version)


class Waits(FakeKind):
    """Each update takes a moment."""

    async def train(self, updates: int, boundary: Boundary) -> None:
        async def slowly(version: int, updated: Updated | None) -> bool:
            await asyncio.sleep(0.1)
            return await boundary(version, updated)

        await super().train(updates, slowly)


def slow(folder: Path, learner: Slow, *callbacks: Callback, **trainer: int) -> Made:
    kind = Waits()
    kind.learner = learner
    return Made(folder, kind, *callbacks, **{"updates": 6, "save_every": 2, "keep_checkpoints": 9, **trainer})


async def test_updates_go_on_while_a_checkpoint_is_written_and_it_counts_when_it_is_on_disk(tmp_path: Path) -> None:
    told = []

    class Hears(Callback):
        async def on_save(self, run: Run, checkpoint: Path) -> None:
            assert (checkpoint / "manifest.json").exists()
            told.append((run.version, run.saved_version, checkpoint.name))

        async def on_step_end(self, run: Run) -> None:
            told.append((run.version, run.saved_version, "step"))

    await slow(tmp_path / "run", Slow(until=4), Hears(), updates=5, save_every=2).finish()
    assert told[1] == (2, None, "step"), "it was begun and does not count yet"
    assert told.index((2, None, "step")) < told.index((3, None, "step")) < told.index((4, 2, "version-000002"))
    assert told[-2:] == [(5, 5, "version-000005"), (5, 5, "step")], "the run waits for its last one"
    state = read_trainer_state(tmp_path / "run" / "checkpoints" / "version-000002")
    assert state.metrics == {"loss": 0.5}, "as of the moment of the copy"


async def test_a_checkpoint_waits_for_the_one_before_it(tmp_path: Path) -> None:
    made = slow(tmp_path / "run", Slow(until=0), save_every=1)
    await made.finish()
    assert made.kind.learner.saved == [1, 2, 3, 4, 5, 6]


async def test_a_write_that_fails_ends_the_run_at_the_next_boundary_by_name(tmp_path: Path) -> None:
    made = slow(tmp_path / "run", Slow(until=0, broken=4))
    with pytest.raises(SaveFailed, match=r"version 4 cannot be saved: .*Input/output error.*version-000002 is intact"):
        await made.finish()
    assert made.kind.learner.version == 5
    assert json.loads(made.folder.summary.read_text())["outcome"].startswith("version 4 cannot be saved")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_run_that_fails_lets_its_checkpoint_end_and_one_that_is_stopped_drops_it(
    tmp_path: Path, *, cancelled: bool
) -> None:
    class Fails(Callback):
        async def on_step_end(self, run: Run) -> None:
            if run.version == 3:
                made.kind.learner.until = 9 if cancelled else 3
                if not cancelled:
                    raise TrainingDiverged("the gradient norm is inf")
                running.cancel()

    made = slow(tmp_path / "run", Slow(until=9), Fails())
    running = asyncio.ensure_future(made.finish())
    with pytest.raises(asyncio.CancelledError if cancelled else TrainingDiverged):
        await running
    assert [path.name for path in checkpoints(made.folder.checkpoints)] == ([] if cancelled else ["version-000002"])


async def test_a_checkpoint_is_written_when_so_many_minutes_have_passed(tmp_path: Path) -> None:
    now = 0.0

    class Updates(Callback):
        async def on_step_end(self, run: Run) -> None:
            nonlocal now
            await run.saved()
            now += 60.0

    made = Made(
        tmp_path / "run", FakeKind(), Updates(), clock=Clock(steady=lambda: now), updates=80, save_every=0,
        save_every_minutes=30,
    )  # fmt: skip
    await made.finish()
    assert made.kind.learner.saved == [31, 61, 80]


@pytest.mark.parametrize("save_seconds", [2.0, 6.0])
async def test_by_default_checkpoints_cost_at_most_two_percent_of_the_time(save_seconds: float, tmp_path: Path) -> None:
    now = 0.0

    class Takes(FakeLearner):
        async def snapshot(self, path: Path) -> Coroutine[Any, Any, dict[str, Any]]:
            nonlocal now
            now += save_seconds
            return await super().snapshot(path)

    class Updates(Callback):
        async def on_step_end(self, run: Run) -> None:
            nonlocal now
            await run.saved()  # what writes a checkpoint has another clock
            now += 10.0
            spent = save_seconds * len(made.kind.learner.saved)
            assert spent <= 0.02 * now or run.last

    kind = FakeKind()
    kind.learner = Takes()
    made = Made(tmp_path / "run", kind, Updates(), clock=Clock(steady=lambda: now), updates=160)
    await made.finish()
    assert kind.learner.saved[0] == 31, "the first boundary after five minutes"
    apart = {later - sooner for sooner, later in pairwise(kind.learner.saved[:-1])}
    assert apart == {5 * save_seconds}, "fifty times as long as a save"


async def test_a_callback_is_called_where_its_names_say(tmp_path: Path) -> None:
    told: list[str] = []

    class Tells(Callback):
        async def on_train_begin(self, run: Run) -> None:
            told.append("train begin")

        def on_step_end(self, run: Run) -> None:  # type: ignore[override]  # a plain function will do
            told.append(f"step {run.version}")
            run.metrics["mine"] = 10.0 * run.version

        async def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
            told.append(f"evaluate {run.version} {evaluation.reward}")

        async def on_save(self, run: Run, checkpoint: Path) -> None:
            told.append(f"save {checkpoint.name}")

        def on_train_end(self, run: Run, summary: Summary) -> None:
            told.append(f"train end {summary.outcome}")

    made = Made(tmp_path / "run", FakeKind(0.5), Tells())
    await made.finish()
    assert told == [
        "train begin", "evaluate 0 0.5", "step 1", "step 2", "save version-000003", "step 3", "evaluate 3 0.5",
        "train end finished",
    ]  # fmt: skip
    assert [line["mine"] for line in made.logged()] == [10.0, 20.0, 30.0]


async def test_loggers_get_the_metrics_of_every_update_and_a_table_now_and_then(tmp_path: Path) -> None:
    Kept.made.clear()
    made = Made(tmp_path / "run", FakeKind(), updates=11, loggers=["tests.runs.test_loggers:Kept"])
    await made.finish()
    (kept,) = Kept.made
    rows = [(line["update"], {k: v for k, v in line.items() if k not in ("update", "time")}) for line in made.logged()]
    table = (10, *made.run.samples)
    assert kept.calls == [*rows[:10], table, rows[10], ("closed",)]
    assert (kept.run.name, kept.run.recipe["trainer"]["updates"]) == ("t", 11)


async def test_a_run_stops_early_with_its_weights_saved_and_evaluated(tmp_path: Path) -> None:
    kind = FakeKind(0.5, 0.75, 0.7, 0.75, 0.6)
    made = Made(tmp_path / "run", kind, EarlyStopping(patience=2), updates=100, eval_every=1)
    summary = await made.finish()
    assert summary.outcome == "finished: eval/reward has not improved on 0.75 for 2 evaluations"
    assert (summary.updates, kind.asked, kind.learner.saved) == (3, [0, 1, 2, 3], [3])


async def test_the_best_weights_of_all_evaluations_are_kept(tmp_path: Path) -> None:
    kind = FakeKind(0.5, 0.75, 0.9, 0.8, 0.6)
    made = Made(tmp_path / "run", kind, BestCheckpoint(), updates=4, eval_every=1)
    await made.finish()
    best = tmp_path / "run" / "best"
    assert json.loads((best / "best.json").read_text()) == {"version": 2, "metric": "eval/reward", "value": 0.9}
    assert ((best / "weights").read_text(), kind.learner.exported) == ("2", [0, 1, 2])
    card = (best / "README.md").read_text()
    for fact in ("run | t: exported while it ran", "updates | 2 of 4", "trained episodes | 2", "avg@1 | 0.5 | 0.9"):
        assert f"| {fact} |" in card


async def test_an_exported_folder_has_a_card_with_the_evaluation_of_its_own_weights_alone(tmp_path: Path) -> None:
    class Exports(Callback):
        async def on_step_end(self, run: Run) -> None:
            await run.export(tmp_path / str(run.version))

    await Made(tmp_path / "run", FakeKind(0.5), Exports()).finish()
    card = (tmp_path / "1" / "README.md").read_text()
    assert "| updates | 1 of 3 |" in card
    assert "| 0.5 | - |" in card


async def test_what_a_callback_raises_ends_the_run_with_its_name(tmp_path: Path) -> None:
    class Breaks(Callback):
        async def on_step_end(self, run: Run) -> None:
            raise KeyError("x")

    made = Made(tmp_path / "run", FakeKind(), Breaks())
    told = r"^Breaks.on_step_end failed: KeyError: 'x' \(at tests/controller/test_run.py:\d+\)$"
    with pytest.raises(CallbackFailed, match=told):
        await made.finish()
    made = Made(tmp_path / "other", FakeKind(0.5), EarlyStopping(metric="eval/rewards"))
    with pytest.raises(ConfigError, match="evaluations lack the metric eval/rewards; they have eval/reward"):
        await made.finish()


class Evaluates(Callback):
    async def on_step_end(self, run: Run) -> None:
        await run.evaluate()


@pytest.mark.parametrize("callback", [EarlyStopping(), BestCheckpoint(), Evaluates()])
async def test_what_waits_for_evaluations_is_refused_where_none_comes(callback: Callback, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this run has no evaluations: data.eval is missing, or kind: rl"):
        await Made(tmp_path / "run", FakeKind(), callback).finish()


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ("EarlyStopping", "not of the form module:Class"),
        ("rlhf.controller.provided_callbacks:Best", "cannot be made: TypeError: Best.__init__.. missing 1 required"),
        ({"call": "rlhf.controller.provided_callbacks:Best", "arguments": {"metric": "x"}}, "not an rlhf.Callback"),
        ({"call": "rlhf.controller.provided_callbacks:EarlyStopping", "arguments": {"patient": 1}}, "patient"),
        ("rlhf.nowhere:Class", "cannot be imported"),
    ],
)
def test_a_callback_that_is_none_is_refused_in_a_line(given: Any, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        user_callbacks(recipe_from({**SORTING, "callbacks": [given]}).recipe.callbacks)


def test_the_time_in_which_the_learner_trains_nothing_has_causes_that_add_up() -> None:
    spans = [
        Span(name="wait", start=0, seconds=2), Span(name="train", start=2, seconds=5),
        Span(name="weight_sync", start=7, seconds=1), Span(name="weight_sync/canary", start=7.5, seconds=0.25),
        Span(name="save", start=8, seconds=0.5),
    ]  # fmt: skip
    shares = {"groups": 0.2, "weight_sync": 0.075, "canary": 0.025, "callbacks": 0.05, "controller": 0.15, "all": 0.5}
    assert idle_shares(spans, 10) == pytest.approx(shares)
