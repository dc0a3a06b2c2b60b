"""What a run that ends early says about its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.apps.cli.train import what_is_saved
from rlhf.durable import synced
from rlhf.trainer.checkpoint import write_checkpoint
from rlhf.trainer.config import SaveEvery
from rlhf.types import Written


@pytest.mark.parametrize(
    ("save_every", "why"),
    [
        ("auto", "the first is due after 300 s of training (trainer.save_every: auto)"),
        (5, "the first is due after update 5 (trainer.save_every: 5)"),
        (0, "it comes at the end (trainer.save_every: 0)"),
    ],
)
def test_a_run_without_a_checkpoint_says_why(save_every: SaveEvery, why: str, tmp_path: Path) -> None:
    told = what_is_saved(tmp_path, save_every)
    assert told == f"the run ended before its first checkpoint, so nothing is saved; {why}"


async def test_the_newest_checkpoint_that_is_whole_is_named(tmp_path: Path) -> None:
    async def save(path: Path) -> dict[str, Written]:
        (path / "weights").write_text("weights")
        return synced(path, [path / "weights"])

    for version in (5, 10, 15):
        await write_checkpoint(tmp_path / "checkpoints", version=version, next_ordinal=0, outstanding=(), save=save)
    (tmp_path / "checkpoints" / "version-000015" / "weights").unlink()
    told = what_is_saved(tmp_path, "auto")
    newest = tmp_path / "checkpoints" / "version-000010"
    assert told == f"saved: {newest}; the same command with --resume continues from it"
