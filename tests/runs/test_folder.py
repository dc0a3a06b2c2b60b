"""A run folder never overwrites an earlier one, and says where every value came from."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import inf
from pathlib import Path

import pytest
import yaml

from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe, recipe_from
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter, read_jsonl
from rlhf.runs.resolved import resolved_yaml
from rlhf.runs.stored_run import read_run
from rlhf.runs.summary import Summary

RECIPE = """\
model:
  tiny: {hidden_size: 64, heads: 2}
data:
  train:
    path: rows.jsonl
    system_prompt: "Be brief: think,\\n  then say # the answer."
    answer_pattern: '####\\s*(.+)'
trainer:
  optimizer: {learning_rate: 3e-4}
"""


def test_user_code_that_changes_the_working_directory_does_not_move_the_run(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for own in (RunFolder.create, RunFolder.keep):
        folder = own(Path("runs/moved"))
        monkeypatch.chdir("/")
        folder.check()
        assert folder.metrics == tmp_path / "runs/moved/metrics.jsonl"
        folder.give_back()
        monkeypatch.chdir(tmp_path)


def test_an_earlier_run_is_moved_aside_and_kept_whole(tmp_path: Path):
    path = tmp_path / "runs" / "quickstart"
    told: list[str] = []
    for content in ("first", "second", "third"):
        folder = RunFolder.create(path, told.append)
        folder.metrics.write_text(content)
        folder.give_back()
    found = {folder.name: (folder / "metrics.jsonl").read_text() for folder in path.parent.iterdir()}
    assert found == {"quickstart": "third", "quickstart.1": "first", "quickstart.2": "second"}
    assert told == [f"{path} existed already: the earlier run is now {path}.{n}" for n in (1, 2)]


def test_a_place_that_cannot_be_written_is_the_users_to_change(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"set run\.dir"):
        RunFolder.create(tmp_path / "file" / "run")


def test_the_resolved_recipe_is_read_back_as_the_same_recipe(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    loaded = load_recipe(tmp_path / "mine.yaml", ["trainer.updates=7", "run.loggers=[]", "trainer.loss.clip_low=1e-5"])
    folder = RunFolder.create(tmp_path / "run")
    folder.write_recipe(loaded.recipe, loaded.origins)
    assert load_recipe(folder.recipe).recipe == loaded.recipe


def test_a_resume_keeps_the_recipes_that_made_the_updates_before_it(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    folder = RunFolder.create(tmp_path / "run")
    for version, group_size in ((0, 2), (4, 2), (8, 3), (12, 4), (10, 5), (6, 6)):
        loaded = load_recipe(tmp_path / "mine.yaml", [f"trainer.group_size={group_size}"])
        folder.write_recipe(loaded.recipe, loaded.origins, version)
        made = read_run(folder.path).recipes()
        sizes = [(last, yaml.safe_load(text)["trainer"]["group_size"]) for last, text in made]
        assert sizes == {
            0: [(inf, 2)], 4: [(inf, 2)], 8: [(8, 2), (inf, 3)], 12: [(8, 2), (12, 3), (inf, 4)],
            10: [(8, 2), (10, 3), (inf, 5)], 6: [(6, 2), (inf, 6)],
        }[version]  # fmt: skip
    assert read_run(folder.path).recipes(6) == read_run(folder.path).recipes()[:1]


def test_the_modules_that_the_recipe_names_are_kept_with_it(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(f"{RECIPE}reward: {{kind: function, function: 'graded.by_digits:reward'}}\n")
    module = tmp_path / "graded" / "by_digits.py"
    module.parent.mkdir()
    module.write_text("def reward(response, row): return 1.0\n")
    loaded = load_recipe(tmp_path / "mine.yaml")
    folder = RunFolder.create(tmp_path / "run")
    folder.write_recipe(loaded.recipe, loaded.origins)
    assert read_run(folder.path).code == {"graded.by_digits": module.read_text()}


def test_every_value_of_the_resolved_recipe_says_where_it_was_set(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    loaded = load_recipe(tmp_path / "mine.yaml", ["trainer.updates=7"])
    lines = resolved_yaml(loaded.recipe, loaded.origins).splitlines()
    origins = {line.strip().partition(":")[0]: line.rpartition("  # ")[2] for line in lines if "  # " in line}
    assert origins["updates"] == "override"
    assert origins["learning_rate"] == str(tmp_path / "mine.yaml")
    assert origins["group_size"] == "default"
    assert lines[0].endswith("# file name")


def test_what_an_empty_mapping_leaves_open_is_default():
    loaded = recipe_from({"model": {"tiny": {}}, "data": {"train": {"path": "x.jsonl"}}})
    lines = resolved_yaml(loaded.recipe, loaded.origins).splitlines()
    assert any(line.split() == ["layers:", "2", "#", "default"] for line in lines)
    assert any(line.split() == ["path:", "x.jsonl", "#", "python"] for line in lines)


def test_the_summary_has_the_keys_people_and_tests_look_for(tmp_path: Path):
    folder = RunFolder.create(tmp_path / "run")
    folder.write_summary(asdict(Summary(name="run", eval_reward_start=0.25, updates=3)))
    written = json.loads(folder.summary.read_text())
    assert {
        "eval_reward_start", "eval_reward_end", "eval_problems", "updates", "samples", "wall_seconds",
        "seconds_to_first_update",
    } <= set(written)  # fmt: skip
    assert written["eval_reward_end"] is None, "an evaluation that never was has no number"
    assert [file.name for file in folder.path.iterdir() if file.name.startswith(".")] == []


def test_lines_wait_in_memory_until_the_buffer_is_full(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    writer = JsonlWriter(path, buffered_lines=3)
    writer.write({"n": n} for n in range(4))
    assert [row["n"] for row in read_jsonl(path)] == [0, 1, 2]
    writer.close()
    assert [row["n"] for row in read_jsonl(path)] == [0, 1, 2, 3]


def test_a_line_that_is_still_being_written_is_not_read(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n{"n": ')
    assert list(read_jsonl(path)) == [{"n": 1}]


def test_a_folder_without_any_record_has_nothing_to_set_aside(tmp_path: Path) -> None:
    folder = RunFolder.keep(tmp_path)
    (folder.logs / "slurm-1.out").write_text("told")
    folder.set_records_aside()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "logs", "owner", "tensorboard"}


def test_records_without_a_checkpoint_are_set_aside_and_logs_stay(tmp_path: Path) -> None:
    folder = RunFolder.keep(tmp_path)
    (folder.logs / "slurm-1.out").write_text("told")
    folder.episodes.mkdir()
    (folder.episodes / "part-000001.parquet").touch()
    folder.set_records_aside()
    assert (tmp_path / "aside.1" / "episodes" / "part-000001.parquet").exists()
    assert (not folder.episodes.exists(), (folder.logs / "slurm-1.out").exists()) == (True, True)
