"""Between two updates: what is done in which order."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import pytest

from rlhf.controller.boundary import Evaluate, Resumed, UpdateBoundary
from rlhf.controller.preemption import Leaving
from rlhf.rollout.evaluation import Evaluation, EvaluationFailed, SetResult
from rlhf.runs.jsonl import JsonlWriter, read_jsonl
from rlhf.runs.loggers import JsonlLogger, Loggers
from rlhf.runs.tracing import Clock
from rlhf.runs.view import PlainView
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.config import TrainerConfig
from rlhf.types import Updated

METRICS = dict.fromkeys(("reward/mean", "staleness/mean", "staleness/max", "samples/trained", "tokens/trained"), 1.0)


def result(name: str, reward: float, **metrics: float) -> SetResult:
    return SetResult(
        name=name, reward=reward, problems=4, distinct_answers=2, metrics={"avg@1": reward} | metrics, groups=()
    )


def boundary_of(
    tmp_path: Path,
    evaluator: Evaluate,
    shown: StringIO,
    saved: list[int],
    leaving: Leaving | None = None,
    resumed: Resumed | None = None,
    **config: int,
) -> UpdateBoundary:
    async def save(version: int, metrics: Mapping[str, float]) -> None:
        saved.append(version)

    return UpdateBoundary(
        config=TrainerConfig(updates=3, **config),
        clock=Clock(),
        view=PlainView(shown),
        loggers=Loggers([JsonlLogger(tmp_path / "metrics.jsonl")]),
        spans=JsonlWriter(tmp_path / "spans.jsonl"),
        buffer=TicketBuffer(groups_per_update=1, max_staleness=0, updates=3, refill_groups=0, failure_budget=1.0),
        evaluator=evaluator,
        checkpoint=save,
        canary_difference=lambda: 0.0,
        leaving=(leaving or Leaving()).reason,
        resumed=resumed,
    )


async def test_the_last_weights_are_saved_even_if_their_evaluation_fails(tmp_path: Path) -> None:
    saved: list[int] = []

    async def fails(version: int) -> Evaluation:
        raise EvaluationFailed("a scorer hung")

    boundary = boundary_of(tmp_path, fails, StringIO(), saved)
    with pytest.raises(EvaluationFailed):
        await boundary(3, Updated(metrics={}, samples=()))
    assert saved == [3]


async def test_what_comes_every_few_updates_comes_after_these_and_after_the_last(tmp_path: Path) -> None:
    asked, saved = [], []

    async def evaluates(version: int) -> Evaluation:
        asked.append(version)
        return Evaluation(sets=(result("held_out", 0.5),))

    boundary = boundary_of(tmp_path, evaluates, StringIO(), saved, save_every=2, eval_every=2)
    ended = [await boundary(version, Updated(metrics=METRICS, samples=()) if version else None) for version in range(4)]
    assert (saved, asked, ended) == ([2, 3], [0, 2, 3], [False, False, False, True])


async def test_every_evaluation_set_is_shown_and_logged_by_its_name(tmp_path: Path) -> None:
    async def evaluates(version: int) -> Evaluation:
        return Evaluation(sets=(result("easy", 0.75), result("hard", 0.25, **{"pass@8": 0.5, "unscored": 0.0})))

    shown = StringIO()
    boundary = boundary_of(tmp_path, evaluates, shown, [])
    await boundary(0, None)
    await boundary(3, Updated(metrics=METRICS, samples=()))
    (logged,) = read_jsonl(tmp_path / "metrics.jsonl")
    assert {key: value for key, value in logged.items() if key.startswith("eval/")} == {
        "eval/reward": 0.75, "eval/easy/avg@1": 0.75, "eval/hard/avg@1": 0.25, "eval/hard/pass@8": 0.5,
        "eval/hard/unscored": 0.0,
    }  # fmt: skip
    assert "evaluation after update 3  hard  reward 0.250  pass@8 0.500  problems 4\n" in shown.getvalue()


async def test_one_set_without_a_name_is_shown_without_one(tmp_path: Path) -> None:
    async def evaluates(version: int) -> Evaluation:
        return Evaluation(sets=(result("held_out", 0.75),))

    shown = StringIO()
    await boundary_of(tmp_path, evaluates, shown, [])(0, None)
    assert "evaluation after update 0  reward 0.750  problems 4\n" in shown.getvalue()


async def test_a_run_that_must_leave_saves_and_leaves_the_evaluation_to_its_resume(tmp_path: Path) -> None:
    async def evaluates(version: int) -> Evaluation:
        return Evaluation(sets=(result("held_out", 0.75),))

    saved: list[int] = []
    leaving = Leaving()
    boundary = boundary_of(tmp_path, evaluates, StringIO(), saved, leaving)
    assert not await boundary(0, None)
    assert not await boundary(1, Updated(metrics=METRICS, samples=()))
    leaving.ask("SIGUSR1")
    assert await boundary(2, Updated(metrics=METRICS, samples=()))
    assert (saved, boundary.left) == ([2], "SIGUSR1")
    assert [version for version, _ in boundary.evaluations] == [0]


async def test_a_resumed_run_first_does_what_was_left_of_its_boundary(tmp_path: Path) -> None:
    asked: list[int] = []

    async def evaluates(version: int) -> Evaluation:
        asked.append(version)
        return Evaluation(sets=(result("held_out", 0.75),))

    first = (0, Evaluation(sets=(result("held_out", 0.5),)))
    resumed = Resumed(metrics=METRICS, reported=[(1, METRICS)], evaluations=[first])
    boundary = boundary_of(tmp_path, evaluates, StringIO(), [], resumed=resumed)
    assert await boundary(3, None), "the budget was spent when it died"
    (logged,) = read_jsonl(tmp_path / "metrics.jsonl")
    assert (logged["update"], logged["eval/reward"], asked) == (3, 0.75, [3])
    assert [version for version, _ in boundary.evaluations] == [0, 3]
    assert (boundary.rewards, boundary.samples) == ([(1, 1.0), (3, 1.0)], 2)
