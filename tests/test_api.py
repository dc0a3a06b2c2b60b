"""The trainer from Python, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rlhf import Callback, Trainer, api
from rlhf.controller.context import RunContext
from rlhf.durable import synced
from rlhf.errors import CheckpointError, ConfigError, DataError, UserError
from rlhf.recipe.schema import Recipe
from rlhf.runs.stored_run import read_run
from rlhf.trainer.checkpoint import write_checkpoint
from rlhf.types import Written
from tests.small_tasks import sorting


def test_what_a_run_saved_before_its_end_is_the_trained_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an interrupt in a notebook, and after a failure."""

    async def interrupted(context: RunContext, callbacks: object) -> None:
        if trainer.recipe.seed:
            await write_checkpoint(context.folder.checkpoints, version=4, next_ordinal=8, outstanding=(), save=saved)
        raise KeyboardInterrupt

    def replies(model: str, prompts: Sequence[str], **options: object) -> list[str]:
        return [f"{Path(model).relative_to(tmp_path)} was asked {prompt}" for prompt in prompts]

    monkeypatch.setattr(api, "train_recipe", interrupted)
    monkeypatch.setattr(api, "replies", replies)
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


def test_a_run_that_its_data_ends_at_the_start_says_so_in_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(context: RunContext, callbacks: object) -> None:
        raise DataError("rows.jsonl, row 7 is not JSON")

    monkeypatch.setattr(api, "train_recipe", refused)
    trainer = Trainer({"name": "t", "model": {"tiny": {}}, "data": {"train": sorting()}, "run": {"dir": str(tmp_path)}})
    with pytest.raises(DataError, match="row 7"):
        trainer.fit()
    assert read_run(tmp_path).outcome == "rows.jsonl, row 7 is not JSON"


async def saved(path: Path) -> dict[str, Written]:
    return synced(path, [])


async def test_a_trainer_begins_from_a_run_or_a_checkpoint_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def trained(context: RunContext, callbacks: object) -> None:
        for version in (2, 4):
            checkpoints = context.folder.checkpoints
            await write_checkpoint(checkpoints, version=version, next_ordinal=8, outstanding=(), save=saved)

    monkeypatch.setattr(api, "train_recipe", trained)
    monkeypatch.setattr(api, "replies", lambda model, prompts, **options: [str(Path(model).relative_to(tmp_path))])
    sections = {"name": "t", "model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"}}
    Trainer(sections).fit()
    monkeypatch.chdir("/")  # the run's folder was relative to the other one
    run, callback = tmp_path / "runs" / "t", Callback()
    for path, version in ((run, 4), (run / "checkpoints" / "version-000002", 2)):
        trainer = Trainer.from_checkpoint(path, "trainer.updates=7", callbacks=[callback])
        assert trainer.predict("1") == f"runs/t/checkpoints/version-00000{version}/huggingface"
        with pytest.raises(ConfigError, match=r"t has no data.eval: there is nothing to evaluate on"):
            trainer.evaluate()
        monkeypatch.setattr(api, "run_folder", lambda recipe, *, resume, **more: resumed(recipe, resume))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(resume=True)
    with pytest.raises(ConfigError, match="is not in a run folder"):
        Trainer.from_checkpoint(tmp_path)
    (run / "checkpoints").rename(run / "lost")
    with pytest.raises(CheckpointError):
        Trainer.from_checkpoint(run)


def resumed(recipe: Recipe, resume: bool) -> None:
    """Stop where a run would go on, if it is where and how the test wants it."""
    assert (recipe.run_dir.name, recipe.run_dir.is_absolute(), recipe.trainer.updates, resume) == ("t", True, 7, True)
    raise KeyboardInterrupt


def test_each_of_several_prompts_gets_its_own_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = object.__new__(Trainer)
    monkeypatch.setattr(Trainer, "_trained", "folder")
    monkeypatch.setattr("rlhf.api.replies", lambda model, prompts, **asked: [f"to {prompt}" for prompt in prompts])
    assert trainer.predict("1") == "to 1"
    assert trainer.predict(["1", "2"]) == ["to 1", "to 2"]
    assert trainer.predict([]) == []
