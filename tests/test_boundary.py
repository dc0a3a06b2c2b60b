"""Between two updates: what is done in which order."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from rlhf.boundary import Evaluate, UpdateBoundary
from rlhf.metrics import Clock
from rlhf.rollout.evaluation import Evaluation, EvaluationFailed, SetResult
from rlhf.runs.jsonl import JsonlWriter, read_jsonl
from rlhf.runs.loggers import JsonlLogger, Loggers
from rlhf.runs.view import PlainView
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.config import TrainerConfig
from rlhf.types import Updated

METRICS = dict.fromkeys(("reward/mean", "staleness/mean", "staleness/max", "samples/trained", "tokens/trained"), 1.0)


def result(name: str, reward: float, **metrics: float) -> SetResult:
    return SetResult(
        name=name, reward=reward, problems=4, distinct_answers=2, metrics={"avg@1": reward} | metrics, groups=()
    )


def boundary_of(tmp_path: Path, evaluator: Evaluate, shown: StringIO, saved: list[int]) -> UpdateBoundary:
    async def save(version: int) -> None:
        saved.append(version)

    return UpdateBoundary(
        config=TrainerConfig(updates=3),
        clock=Clock(),
        view=PlainView(shown),
        loggers=Loggers([JsonlLogger(tmp_path / "metrics.jsonl")]),
        spans=JsonlWriter(tmp_path / "spans.jsonl"),
        buffer=TicketBuffer(groups_per_update=1, max_staleness=0, updates=3, refill_groups=0, failure_budget=1.0),
        evaluator=evaluator,
        checkpoint=save,
        canary_difference=lambda: 0.0,
    )


async def test_the_last_weights_are_saved_even_if_their_evaluation_fails(tmp_path: Path) -> None:
    saved: list[int] = []

    async def fails(version: int) -> Evaluation:
        raise EvaluationFailed("a scorer hung")

    boundary = boundary_of(tmp_path, fails, StringIO(), saved)
    with pytest.raises(EvaluationFailed):
        await boundary(3, Updated(metrics={}, samples=()))
    assert saved == [3]


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
