"""Going on with a run: the books of a checkpoint, and what is cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rlhf.controller.context import run_folder
from rlhf.controller.resume import ResumePoint, changes, plan_of, resume_point, rewind
from rlhf.controller.trainer_state import TrainerState, check_records, read_trainer_state, write_trainer_state
from rlhf.durable import synced
from rlhf.errors import CheckpointError, ConfigError
from rlhf.recipe.loading import LoadedRecipe, recipe_from
from rlhf.rollout.evaluation import Evaluation, SetResult
from rlhf.runs.folder import RunFolder
from rlhf.trainer.buffer import Accounts
from rlhf.trainer.checkpoint import read_checkpoint, write_checkpoint
from rlhf.types import Written
from tests.small_tasks import sorting

RECIPE = {"name": "t", "model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"}}
GROUPS = Accounts(admitted=20, trained=16, filtered=3, failed=1, in_flight=0)
RESULT = SetResult(name="held_out", reward=0.5, problems=4, distinct_answers=3, metrics={"avg@1": 0.5}, groups=())


def trainer_state(**lines: int) -> TrainerState:
    return TrainerState(
        plan=plan_of(recipe_from(RECIPE).recipe), groups=GROUPS, episodes={"trained": 64},
        lines={name.replace("_", "."): length for name, length in lines.items()}, metrics={"reward/mean": 0.1},
        evaluations=((0, Evaluation(sets=(RESULT,))),), wall_seconds=1.5,
    )  # fmt: skip


def checkpoint(folder: RunFolder, version: int, what: TrainerState) -> ResumePoint:
    async def save(path: Path) -> dict[str, Written]:
        write_trainer_state(path, what)
        return synced(path, [path / "trainer_state.json"])

    written = write_checkpoint(folder.checkpoints, version=version, next_ordinal=8, outstanding=(), save=save)
    path = asyncio.run(written)
    return ResumePoint(path=path, manifest=read_checkpoint(path), trainer_state=what)


def test_books_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_trainer_state(tmp_path, trainer_state(metrics_jsonl=7))
    assert read_trainer_state(tmp_path) == trainer_state(metrics_jsonl=7)


def test_a_checkpoint_without_books_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no trainer_state\.json"):
        read_trainer_state(tmp_path)


def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    folder = RunFolder.keep(tmp_path)
    folder.metrics.write_text("first\nsecond\n")
    rewind(folder, checkpoint(folder, 1, trainer_state(metrics_jsonl=6)))
    assert folder.metrics.read_text() == "first\n"


def test_records_that_were_lost_or_never_filled_are_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("first\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl has 6 bytes, but had 7 at the checkpoint"):
        check_records(tmp_path, trainer_state(metrics_jsonl=7))
    (tmp_path / "metrics.jsonl").write_bytes(bytes(6))
    with pytest.raises(
        CheckpointError, match=r"metrics\.jsonl is damaged: it has no line end where the checkpoint's records end"
    ):
        check_records(tmp_path, trainer_state(metrics_jsonl=6))


def test_a_checkpoint_whose_records_were_lost_is_left_for_the_one_before_it(tmp_path: Path) -> None:
    loaded, told, folder = started(tmp_path)
    folder.metrics.write_text("first\n")
    checkpoint(folder, 5, trainer_state(metrics_jsonl=6))
    checkpoint(folder, 10, trainer_state(metrics_jsonl=13))
    point = resume_point(loaded.recipe, folder, told.append)
    assert point is not None
    assert point.version == 5
    assert "metrics.jsonl has 6 bytes, but had 13 at the checkpoint" in told[0]


def test_books_that_the_disk_never_filled_are_left_for_the_ones_before_them(tmp_path: Path) -> None:
    loaded, told, folder = started(tmp_path)
    checkpoint(folder, 5, trainer_state())
    books = checkpoint(folder, 10, trainer_state()).path / "trainer_state.json"
    books.write_bytes(bytes(books.stat().st_size))
    point = resume_point(loaded.recipe, folder, told.append)
    assert point is not None
    assert (point.version, "trainer_state.json cannot be read" in told[0]) == (5, True)


def test_where_no_checkpoint_can_be_used_a_run_begins_again_only_when_it_is_told_to(tmp_path: Path) -> None:
    loaded, told, folder = started(tmp_path)
    folder.give_back()
    (checkpoint(folder, 400, trainer_state()).path / "manifest.json").unlink()
    for _ in range(2):  # a job that is queued again asks again
        with pytest.raises(CheckpointError, match=r"no usable checkpoint \(1 refused.*--start-over"):
            run_folder(loaded.recipe, resume=True, tell=told.append)
    again, point = run_folder(loaded.recipe, resume=True, start_over=True, tell=told.append)
    assert point is None
    assert (tmp_path / "aside.1" / "checkpoints" / "version-000400").is_dir()
    assert list(again.checkpoints.iterdir()) == []


def test_a_damaged_checkpoint_that_was_set_aside_is_still_one_beside_which_no_run_begins(tmp_path: Path) -> None:
    loaded, told, folder = started(tmp_path)
    (folder.checkpoints / "damaged-000400").mkdir()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        resume_point(loaded.recipe, folder, told.append)


def started(path: Path) -> tuple[LoadedRecipe, list[str], RunFolder]:
    loaded, folder = recipe_from(RECIPE | {"run": {"dir": str(path)}}), RunFolder.keep(path)
    folder.write_recipe(loaded.recipe, loaded.origins)
    return loaded, [], folder


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    recipe, told, folder = started(tmp_path)
    checkpoint(folder, 5, trainer_state())
    (checkpoint(folder, 10, trainer_state()).path / "trainer_state.json").write_text("{}")
    (folder.checkpoints / "writing-000015").mkdir()
    point = resume_point(recipe.recipe, folder, told.append)
    assert point is not None
    assert point.version == 5
    assert told[0].endswith("writing-000015 was never finished")
    assert "version-000010 is damaged: trainer_state.json has 2, it should have" in told[1]
    rewind(folder, point)
    assert sorted(path.name for path in folder.checkpoints.glob("*0")) == ["damaged-000010"]


def test_another_plan_is_exact_in_data_and_not_in_bits(tmp_path: Path) -> None:
    _, told, folder = started(tmp_path)
    checkpoint(folder, 5, trainer_state())
    now = recipe_from(RECIPE | {"run": {"dir": str(tmp_path)}, "trainer": {"deepspeed": {"ranks": 2}}})
    assert resume_point(now.recipe, folder, told.append) is not None
    assert told[-2].startswith("changed since: trainer.deepspeed.ranks 1 → 2")
    assert told[-1].startswith("resuming under another plan (1 rank(s)")
    assert told[-1].endswith("exact in data, not in bits")


def test_data_may_lie_elsewhere_and_other_settings_of_data_may_not_change(tmp_path: Path) -> None:
    values = {"data": {"train": {"path": "/before/rows.jsonl"}}, "run": {"dir": str(tmp_path)}}
    loaded, folder = recipe_from(RECIPE | values), RunFolder.keep(tmp_path)
    folder.write_recipe(loaded.recipe, loaded.origins)
    checkpoint(folder, 5, trainer_state())
    told: list[str] = []
    moved = recipe_from(RECIPE | values | {"data": {"train": {"path": "/now/rows.jsonl"}}})
    assert resume_point(moved.recipe, folder, told.append) is not None
    assert "changed since: data.train.path '/before/rows.jsonl' → '/now/rows.jsonl'" in told
    fewer = recipe_from(RECIPE | values | {"data": {"train": {"path": "/before/rows.jsonl", "limit": 4}}})
    with pytest.raises(ConfigError, match=r"data\.train\.limit was None .* a resumed run keeps its data"):
        resume_point(fewer.recipe, folder, told.append)


def test_changes_are_found_at_any_depth() -> None:
    before, now = {"a": {"b": 1, "c": {}}, "d": 2}, {"a": {"b": 3, "c": {}}, "e": None}
    assert changes(before, now) == {"a.b": (1, 3), "d": (2, None)}
