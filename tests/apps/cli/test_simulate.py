"""`rlhf simulate` from a plan, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.apps.cli.conftest import Command
from tests.recipe.planning.gpu_recipes import recipe_file
from tests.runs.made_run import made_run

SEVEN_B = recipe_file("math_7b_one_node")
ON_CARDS = ("--gpus", "8xH100")


def test_a_recipe_is_simulated_from_its_plan(rlhf: Command) -> None:
    ended = rlhf("simulate", SEVEN_B, *ON_CARDS, "--reply-tokens", "800", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert list(found) == ["low", "high"]
    assert found["low"]["update_seconds"] < found["high"]["update_seconds"]
    assert found["low"]["staleness_max"] == 1


def test_the_table_has_a_column_for_each_end(rlhf: Command) -> None:
    lines = rlhf("simulate", SEVEN_B, *ON_CARDS, "trainer.max_staleness=0").stdout.splitlines()
    assert lines[0].split() == ["low", "high"]
    assert lines[1].startswith("update, s")
    assert lines[-1].split() == ["episodes", "lost", "0", "0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "8xH999"), "--gpus 8xH999 is not a known card"),
        (("--gpus", "1xH100"), "8 GPUs"),
        ((*ON_CARDS, "--engines", "9"), "GPUs"),
        ((*ON_CARDS, "--stragglers", "often"), "--stragglers often is no share and factor; give for instance 0.01,50"),
        ((*ON_CARDS, "--stragglers", "2,5"), "--stragglers 2,5 is no share and factor"),
        ((*ON_CARDS, "--from", "absent"), "absent is not a run folder: it is not there"),
        ((*ON_CARDS, "--from", "made"), "made has no recorded times: it has no spans.jsonl"),
        ((*ON_CARDS, "trainer.updatse=3"), "did you mean 'trainer.updates'"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(rlhf: Command, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    made_run(tmp_path / "made", [], recipe=SEVEN_B.read_text() + "\nname: made\n")
    ended = rlhf("simulate", SEVEN_B, *words)
    assert ended.returncode == 2, ended.stdout
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_run_that_only_learns_is_not_simulated(rlhf: Command, recipe: Path) -> None:
    ended = rlhf("simulate", recipe, "kind=sft", "data.train.path=null", "data.train.conversations=rows.jsonl")
    assert ended.returncode == 2


def test_what_is_measured_is_this_machine(rlhf: Command) -> None:
    ended = rlhf("plan", SEVEN_B, *ON_CARDS, "--measure")
    assert ended.returncode == 2
    assert "--measure measures this machine, and --gpus plans for another" in ended.stderr
