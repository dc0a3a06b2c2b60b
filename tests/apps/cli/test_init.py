"""`rlhf init`: each kind's project is complete, passes its own tests, and nothing that is there is overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf.apps.cli.init import TEMPLATES, run_init
from tests.apps.cli.conftest import Command
from tests.pace import scaled
from tests.runs.made_run import made_run

KINDS = {
    "reward": "my_reward", "environment": "my_environment", "tools": "my_tools", "agent": "my_agent",
    "preference": "pairs",
}  # fmt: skip
"""Every kind, and what its test is of."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_complete_and_its_recipe_is_taken(rlhf: Command, tmp_path: Path, kind: str) -> None:
    told = rlhf("init", "first.try", "--kind", kind)
    assert told.returncode == 0, told.stderr
    project = tmp_path / "first.try"
    names = {"recipe.yaml", "rows.jsonl", "held_out.jsonl", "warm_up.py", "README.md", f"test_{KINDS[kind]}.py"}
    made = {file.name for file in project.iterdir()}
    assert made == names | {f"{KINDS[kind]}.py"} - {"pairs.py"}
    assert all(name in told.stdout for name in made)
    assert yaml.safe_load((project / "recipe.yaml").read_text())["name"] == "first.try"
    page = (project / "README.md").read_text()
    assert page.startswith("# first.try\n")
    assert all(f"`{name}`" in page for name in made - {"README.md"})
    checked = rlhf("check", "first.try")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("reward", "check", "reward"), 0, "0 of 33 hostile replies are accepted"),
        (("reward", "check", "environment"), 2, "needs an episode's turns"),
        (("serve", "reward", "preference"), 2, "preference is of kind: preference, which has no reward"),
        (("serve", "env", "environment", "--arguments", '{"colour": 1}'), 2, "my_environment:Sorting cannot be made"),
        (("serve", "env", "reward"), 2, "'reward' is neither MODULE:CLASS"),
        (("env", "check", "environment"), 2, "serve it first: rlhf serve env environment"),
        (("eval", "absent", "--recipe", "reward"), 2, "absent: there is no such checkpoint"),
        (("report", "reward"), 0, "report.html"),
        (("top", "reward"), 0, "made: its process ended"),
        (("audit", "agent"), 2, "runs/agent is not a run folder"),
        (("episodes", "reward"), 2, "runs/reward: there are no recorded episodes"),
        (("view", "agent"), 2, "runs/agent does not exist"),
        (("generate", "agent", "52431"), 2, "runs/agent: there is no such checkpoint"),
        (("export", "agent", "new"), 2, "runs/agent: there is no such checkpoint"),
        (("serve", "policy", "agent"), 2, "runs/agent: there is no such checkpoint"),
    ],
)
def test_a_project_is_named_to_every_command(
    rlhf: Command, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    """It means its recipe, and its run where one is needed."""
    for kind in KINDS:
        run_init(tmp_path / kind, kind)
    (tmp_path / "runs").mkdir()
    made_run(tmp_path / "runs" / "reward", [{"reward/mean": 0.5}])
    ended = rlhf(*words)
    assert (ended.returncode, told in ended.stdout + ended.stderr) == (code, True), ended.stderr


def test_the_tests_of_every_kind_pass(rlhf: Command, tmp_path: Path) -> None:
    """In one process, as all modules have other names; as their owner starts them, from the folder above."""
    for kind in KINDS:
        rlhf("init", kind, "--kind", kind)
    (tmp_path / "pytest.ini").touch()
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *KINDS],
        cwd=tmp_path, capture_output=True, text=True, timeout=scaled(60),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_held_out_questions_are_new_to_the_model() -> None:
    """They are neither trained on nor demonstrated, for any kind."""
    found: dict[str, Any] = {}
    exec((TEMPLATES / "every" / "warm_up.py-tpl").read_text(), found)
    demonstrated = {talk[0].content for talk in found["demonstrations"](5000, 0)}
    for part in ("every", "preference"):
        rows, held_out = (questions(part, name) for name in ("rows.jsonl", "held_out.jsonl"))
        assert (len(rows), len(held_out)) == (50, 32)
        assert not held_out & (rows | demonstrated)


def questions(part: str, name: str) -> set[str]:
    return {json.loads(line)["question"] for line in (TEMPLATES / part / name).read_text().splitlines()}


@pytest.mark.parametrize("folder", ["my project", ".hidden", "-", "naïve", "kind/of+"])
def test_a_folder_that_cannot_name_a_run_is_refused(rlhf: Command, tmp_path: Path, folder: str) -> None:
    ended = rlhf("init", "--", folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {Path(folder).name!r} cannot name a run; use letters, digits")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_another_kind_is_refused_in_one_line(rlhf: Command, tmp_path: Path) -> None:
    ended = rlhf("init", "mine", "--kind", "every")
    assert (ended.returncode, list(tmp_path.iterdir())) == (2, [])
    assert ended.stderr == "error: there is no kind 'every'; use one of agent, environment, preference, reward, tools\n"


def test_what_is_there_is_not_overwritten(rlhf: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.jsonl").write_text("mine")
    for folder, why in (("mine", "mine is not empty; name a new"), ("mine/rows.jsonl", "Not a directory")):
        ended = rlhf("init", folder)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert why in ended.stderr
    assert [(file.name, file.read_text()) for file in (tmp_path / "mine").iterdir()] == [("rows.jsonl", "mine")]
    (tmp_path / "empty").mkdir()
    assert rlhf("init", "empty").returncode == 0
