"""A recipe from the values of a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from rlhf.config import load_piece
from rlhf.data.sources import load_tasks
from rlhf.errors import ConfigError
from rlhf.recipe import from_python
from rlhf.recipe.from_python import recipe_from_python
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.schema import Recipe
from rlhf.reward.rules import exact

ROWS = [{"question": "1+1", "answer": "2"}, {"question": "2+2", "answer": "4"}]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(from_python, "KEPT_IN", tmp_path / "kept")
    return tmp_path / "kept"


def made(**sections: Any) -> Recipe:
    return recipe_from_python({"model": {"tiny": {}}, "data": ROWS}, sections).recipe


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        datasets.Dataset.from_list(ROWS),
        {"train": ROWS},
        {"train": {"path": ROWS}},
        {"train": [{"path": ROWS, "weight": 1.0}]},
        {"train": ROWS, "eval": ROWS},
        {"train": ROWS, "eval": {"mine": ROWS, "yours": {"path": ROWS, "samples": 2, "temperature": 1.0}}},
    ],
)
def test_every_set_may_be_rows(data: Any) -> None:
    for found in made(data=data).data.sets.values():
        assert [(task.messages[0].content, task.answer) for task in load_tasks(found)] == [("1+1", "2"), ("2+2", "4")]


def test_the_same_rows_are_the_same_file(kept: Path) -> None:
    assert made().data == made().data
    (file,) = kept.iterdir()
    assert file.name.startswith("data.train_"), "errors about a row name its file"


def test_a_run_without_a_name_has_that_of_its_folder() -> None:
    assert (made().name, made(run={"dir": "runs/six"}).name) == ("run", "six")
    assert made(name="seven", run={"dir": "runs/six"}).name == "seven"


def test_short_forms_are_those_of_a_recipe() -> None:
    short = {"model": "some/model", "data": "rows.jsonl", "reward": "math", "trainer.updates": 3}
    recipe = recipe_from_python(short).recipe
    assert (recipe.model.path, recipe.reward.kind, recipe.trainer.updates) == ("some/model", "math", 3)
    assert recipe.data.train_sets["data.train"].path == "rows.jsonl"


def test_a_function_that_can_be_imported_is_named() -> None:
    assert made(reward=exact).reward.function == "rlhf.reward.rules:exact"


def test_a_function_of_a_program_works_in_another_process(tmp_path: Path) -> None:
    worth = 0.5
    recipe = made(reward=lambda response, row: worth * (response == row["answer"]))
    assert recipe.reward.function
    asked = f"from {recipe.reward.function.replace(':', ' import ')}; print(piece('2', {ROWS[0]!r}))"
    run = [sys.executable, "-c", asked]
    environment = {"PYTHONPATH": ":".join(recipe.python_path)}
    assert subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout == "0.5\n"


def test_what_a_run_records_reads_as_the_same_recipe(tmp_path: Path) -> None:
    loaded = recipe_from_python({"model": {"tiny": {}}, "data": ROWS, "reward": lambda response, row: 1.0})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(loaded.recipe.model_dump(mode="json", exclude_unset=True)))
    again = load_recipe(tmp_path / "recipe.yaml").recipe
    assert again.reward.function == loaded.recipe.reward.function
    assert load_piece(str(again.reward.function), "reward.function")("", {}) == 1.0
    assert load_tasks(again.data.train_sets["data.train"])


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"data": ["1+1"]}, "data.train: row 1 is str; a row maps"),
        ({"data": [{"answer": {1, 2}}]}, "data.train: row 1 cannot be written as JSON"),
        ({"data": 3}, "data.train is int; give a path, a list of rows"),
        ({"reward": lambda response, row, held=sys.stdout: 1.0}, "reward.function cannot be sent to another process"),
        ({"arguments": {}}, "unknown key 'arguments'"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_key(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        made(**sections)
