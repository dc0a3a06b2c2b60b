"""The trainer from Python, without a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf import Trainer, api
from rlhf.controller.context import RunContext
from rlhf.errors import CheckpointError, UserError
from rlhf.runs.durable import synced
from rlhf.trainer.checkpoint import write_checkpoint
from rlhf.types import Written
from tests.small_tasks import sorting


def test_what_a_run_saved_before_its_end_is_the_trained_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an interrupt in a notebook, and after a failure."""

    async def saved(path: Path) -> dict[str, Written]:
        return synced(path, [])

    async def interrupted(context: RunContext, callbacks: object) -> None:
        if trainer.recipe.seed:
            await write_checkpoint(context.folder.checkpoints, version=4, next_ordinal=8, outstanding=(), save=saved)
        raise KeyboardInterrupt

    def reply(model: str, prompt: str, **options: object) -> str:
        return f"{Path(model).relative_to(tmp_path)} was asked {prompt}"

    monkeypatch.setattr(api, "train_recipe", interrupted)
    monkeypatch.setattr(api, "reply", reply)
    for seed, told in ((0, None), (1, "run/checkpoints/version-000004/huggingface was asked 52431")):
        trainer = Trainer(
            {"name": "t", "model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"}},
            run={"dir": str(tmp_path / ("run" if seed else "none"))}, seed=seed,
        )  # fmt: skip
        with pytest.raises(UserError, match="nothing is trained yet"):
            trainer.predict("52431")
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        if told:
            assert trainer.predict("52431") == told
        else:
            with pytest.raises(CheckpointError, match="there is no finished checkpoint"):
                trainer.predict("52431")
