"""How the start of a run ends that cannot begin."""

from __future__ import annotations

import asyncio

import pytest

from rlhf.controller import rl as training
from rlhf.controller.rl import explain_start_failure
from rlhf.errors import ModelError, RlhfError, WorkerFailed
from tests.pace import scaled

FAILED = WorkerFailed("engine-0", "start", "RuntimeError: start (0) + length (128) exceeds dimension size (64).")
REFUSED = ModelError("model.path=m: its weights do not fit its config.json")


async def learner(ends: RlhfError | None) -> None:
    """A start that ends a moment after the engine's."""
    await asyncio.sleep(0.01)
    if ends:
        raise ends


@pytest.mark.parametrize(
    ("ends", "told"),
    [(REFUSED, REFUSED), (None, FAILED), (WorkerFailed("learner-0", "start", "RuntimeError: another"), FAILED)],
)
async def test_a_model_that_the_learner_refuses_is_why_the_engine_failed(ends: RlhfError | None, told: RlhfError):
    assert await explain_start_failure(FAILED, asyncio.ensure_future(learner(ends))) is told


async def test_a_learner_that_hangs_does_not_keep_the_engines_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "EXPLAINED_SECONDS", 0.01)
    async with asyncio.timeout(scaled(10)):
        assert await explain_start_failure(FAILED, asyncio.get_running_loop().create_future()) is FAILED
