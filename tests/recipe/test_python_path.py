"""A recipe finds the modules that lie with it, wherever the command runs, and so does whoever reads what it came to."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from rlhf.config import read_yaml
from rlhf.data.sources import load_tasks
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.preflight import check_dataset
from rlhf.reward.reward import make_reward
from rlhf.reward.reward_interface import score_reply
from rlhf.runs.resolved import resolved_yaml
from rlhf.types import Scored, Task

MODULE = """
from rlhf.types import Message, Task

def tasks():
    return [Task(id="0", messages=(Message(role="user", content="hello"),))]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a recipe in a folder, a module above it, and a command that runs elsewhere."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder in ("project/own_code", "project/recipes", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "project" / "own_code" / "hello.py").write_text(MODULE)
    recipe = "model: {tiny: {}}\ndata: {train: {tasks: 'own_code.hello:tasks'}}\n"
    (tmp_path / "project" / "recipes" / "mine.yaml").write_text(recipe)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for module in ("own_code", "own_code.hello"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path / "project"


def test_a_module_above_the_recipe_is_found_from_elsewhere(project: Path) -> None:
    recipe = load_recipe(project / "recipes" / "mine.yaml").recipe
    assert recipe.python_path == (str(project),)
    (dataset,) = recipe.data.sets.values()
    check_dataset(dataset)
    assert [task.id for task in load_tasks(dataset)] == ["0"]


def test_a_recipe_on_another_finds_the_modules_of_both(project: Path) -> None:
    Path("own_reward.py").write_text("def score(response, row): return 1.0")
    base = project / "recipes" / "mine.yaml"
    Path("top.yaml").write_text(f"base: {base}\nreward: {{kind: function, function: 'own_reward:score'}}")
    assert load_recipe(Path("top.yaml")).recipe.python_path == (str(project),), "the command's own folder is no news"


def test_what_a_run_leaves_is_read_anywhere(project: Path, tmp_path: Path) -> None:
    loaded = load_recipe(project / "recipes" / "mine.yaml")
    left = tmp_path / "recipe.yaml"
    left.write_text(resolved_yaml(loaded.recipe, loaded.origins))
    assert read_yaml(left)["python_path"] == [str(project)]
    sys.path[:] = [path for path in sys.path if path != str(project)]
    assert load_recipe(left).recipe == loaded.recipe
    assert str(project) in sys.path


def test_where_the_command_runs_in_the_project_nothing_is_added(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert load_recipe(Path("recipes/mine.yaml")).recipe.python_path == ()


def test_a_module_of_the_same_name_where_the_command_runs_is_not_taken(project: Path) -> None:
    Path("own_code").mkdir()
    Path("own_code/hello.py").write_text("raise RuntimeError")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m rlhf` does
    (dataset,) = load_recipe(project / "recipes" / "mine.yaml").recipe.data.sets.values()
    assert [task.id for task in load_tasks(dataset)] == ["0"]


def test_the_module_beside_a_base_is_nearer_than_one_above_the_file_on_it(project: Path) -> None:
    """`rlhf sweep` writes such a file below the folder where it runs."""
    for place, worth in ((Path.cwd(), 0.0), (project / "recipes", 1.0)):
        (place / "own_reward.py").write_text(f"def score(response, row): return {worth}")
    Path("runs/mine.fit").mkdir(parents=True)
    base = project / "recipes" / "mine.yaml"
    Path("runs/mine.fit/fitted.yaml").write_text(
        f"base: {base}\nreward: {{kind: function, function: 'own_reward:score'}}"
    )
    assert load_recipe(Path("runs/mine.fit/fitted.yaml")).recipe.python_path == (str(project), str(base.parent))


@pytest.mark.waits
async def test_of_two_projects_each_has_its_own_reward(project: Path, tmp_path: Path) -> None:
    """Also in processes that are started in the folder of the other one, and after the other one was loaded."""
    recipe = (
        "model: {tiny: {}}\ndata: {train: {path: rows.jsonl}}\nreward: {kind: function, function: 'own_reward:score'}\n"
    )
    for worth, folder in enumerate((project, tmp_path / "elsewhere")):
        (folder / "recipe.yaml").write_text(recipe)
        (folder / "own_reward.py").write_text(f"def score(response, row): return {worth}")
    for worth, folder in enumerate((project, tmp_path / "elsewhere", project)):
        reward = make_reward(load_recipe(folder / "recipe.yaml").recipe.reward)
        try:
            await reward.start()
            task = Task(id="0", messages=())
            scored = await score_reply(reward, task, "")
            assert isinstance(scored, Scored)
            assert scored.value == worth % 2
        finally:
            await reward.close()


def test_a_process_that_has_imported_a_module_does_not_take_it_for_another_ones(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook that trains two projects, whose modules have the same names."""
    monkeypatch.delitem(sys.modules, "warm", raising=False)
    for folder in (project, Path.cwd()):
        (folder / "mine.yaml").write_text("model: {tiny: {}}\ndata: {train: {tasks: 'warm:tasks'}}\n")
        (folder / "warm.py").write_text(MODULE)
    told = f"{project}/warm.py is imported already; start another process"
    for folder, refused in ((project, False), (Path.cwd(), True)):
        (dataset,) = load_recipe(folder / "mine.yaml").recipe.data.sets.values()
        with pytest.raises(ConfigError, match=told) if refused else nullcontext():
            assert load_tasks(dataset)


def test_folders_that_a_recipe_names_are_searched_first(project: Path, tmp_path: Path) -> None:
    Path("own.yaml").write_text("base: ../project/recipes/mine.yaml\npython_path: [../project]\n")
    recipe = load_recipe(Path("own.yaml")).recipe
    assert [Path(folder).resolve() for folder in recipe.python_path] == [project]
    assert Path(recipe.python_path[0]).is_absolute()
    assert sys.path[:2] == [recipe.python_path[0], str(Path.cwd())]


def test_a_module_that_is_nowhere_is_one_line(project: Path) -> None:
    absent = "own_code.absent:tasks"
    recipe = load_recipe(project / "recipes" / "mine.yaml", [f"data.train.tasks={absent}"]).recipe
    assert recipe.python_path == ()
    with pytest.raises(ConfigError, match=f"data.train.tasks is {absent}, which cannot be imported"):
        check_dataset(recipe.data.sets["data.train"])


def test_a_file_with_the_name_of_a_module_of_python_is_to_be_renamed(project: Path) -> None:
    (project / "random.py").write_text(MODULE)
    (project / "named.yaml").write_text("model: {tiny: {}}\ndata: {train: {tasks: 'random:tasks'}}\n")
    (dataset,) = load_recipe(project / "named.yaml").recipe.data.sets.values()
    with pytest.raises(ConfigError, match=r"random is a module of Python itself; rename .*/random.py"):
        load_tasks(dataset)
