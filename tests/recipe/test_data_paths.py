"""Data is found where the command runs and beside the recipe, and a run's recipe names it wherever it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.resolve import recipe_of_run
from rlhf.recipe.schema import Recipe
from rlhf.runs.resolved import resolved_yaml

ROW = '{"question": "?", "answer": "4"}\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe with its rows in one folder, and a command that runs in another, `elsewhere`."""
    for folder in ("project/rows", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "project" / "train.jsonl").write_text(ROW)
    (tmp_path / "project" / "rows" / "test.jsonl").write_text(ROW)
    data = "{train: {path: train.jsonl}, eval: {a: {path: rows, split: test}, b: {path: openai/gsm8k}}}"
    (tmp_path / "project" / "mine.yaml").write_text(f"model: {{tiny: {{}}}}\ndata: {data}\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


def paths(recipe: Recipe) -> list[str | None]:
    return [one.path for one in recipe.data.sets.values()]


def test_data_beside_the_recipe_is_found_and_absolute(project: Path) -> None:
    assert paths(load_recipe(project / "mine.yaml").recipe) == [
        str(project / "train.jsonl"), str(project / "rows"), "openai/gsm8k",
    ]  # fmt: skip


def test_data_beside_the_recipe_comes_before_data_where_the_command_runs(project: Path) -> None:
    for name in ("train.jsonl", "only_here.jsonl"):
        Path(name).write_text(ROW)
    (project / "mine.yaml").write_text((project / "mine.yaml").read_text().replace("openai/gsm8k", "only_here.jsonl"))
    theirs, here = project / "train.jsonl", Path.cwd() / "only_here.jsonl"
    assert paths(load_recipe(project / "mine.yaml").recipe) == list(map(str, (theirs, project / "rows", here)))


@pytest.mark.parametrize("override", ["data.train.path=train.jsonl", "data.train={path: train.jsonl}"])
def test_a_path_on_the_command_line_is_one_from_there(project: Path, override: str) -> None:
    Path("train.jsonl").write_text(ROW)
    loaded = load_recipe(project / "mine.yaml", [override, "data.eval.b.path=../project/train.jsonl"])
    here = str(Path.cwd() / "train.jsonl")
    assert paths(loaded.recipe) == [here, str(project / "rows"), str(project / "train.jsonl")]


def test_data_beside_the_base_of_a_recipe_is_found(project: Path) -> None:
    Path("top.yaml").write_text(f"base: {project / 'mine.yaml'}\ndata: {{train: [{{path: train.jsonl}}]}}")
    assert paths(load_recipe(Path("top.yaml")).recipe)[0] == str(project / "train.jsonl")


def test_recorded_episodes_beside_the_recipe_are_found(project: Path) -> None:
    (project / "run").mkdir()
    (project / "offline.yaml").write_text("kind: offline\nmodel: {tiny: {}}\ndata: {episodes: run}\n")
    assert load_recipe(project / "offline.yaml").recipe.data.episodes == str(project / "run")


def test_the_recipe_of_a_run_finds_its_data_from_anywhere(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_recipe(project / "mine.yaml")
    model = tmp_path / "runs" / "one" / "checkpoints" / "version-000002" / "huggingface"
    model.mkdir(parents=True)
    (tmp_path / "runs" / "one" / "recipe.yaml").write_text(resolved_yaml(loaded.recipe, loaded.origins))
    monkeypatch.chdir(tmp_path / "runs")
    for checkpoint in (Path("one"), Path("one/checkpoints/version-000002"), model):
        assert paths(load_recipe(recipe_of_run(checkpoint)).recipe) == paths(loaded.recipe)
    with pytest.raises(ConfigError, match=r"not in a run folder with a recipe\.yaml; give the recipe: --recipe"):
        recipe_of_run(project)
