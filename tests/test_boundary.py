"""Between two updates: what is done in which order."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from rlhf.boundary import UpdateBoundary
from rlhf.metrics import Clock
from rlhf.rollout.evaluation import EvaluationFailed
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.loggers import Loggers
from rlhf.runs.view import PlainView
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.config import TrainerConfig
from rlhf.types import Updated


async def test_the_last_weights_are_saved_even_if_their_evaluation_fails(tmp_path: Path) -> None:
    saved: list[int] = []

    async def fails(version: int) -> None:
        raise EvaluationFailed("a scorer hung")

    async def save(version: int) -> None:
        saved.append(version)

    boundary = UpdateBoundary(
        config=TrainerConfig(updates=3),
        clock=Clock(),
        view=PlainView(StringIO()),
        loggers=Loggers([]),
        spans=JsonlWriter(tmp_path / "spans.jsonl"),
        buffer=TicketBuffer(groups_per_update=1, max_staleness=0, updates=3, refill_groups=0, failure_budget=1.0),
        evaluator=fails,
        checkpoint=save,
        canary_difference=lambda: 0.0,
    )
    with pytest.raises(EvaluationFailed):
        await boundary(3, Updated(metrics={}, samples=()))
    assert saved == [3]
