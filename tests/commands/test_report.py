"""`rlhf report`: the file that it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Command
from tests.runs.made_run import made_run


def test_the_command_writes_the_form_that_the_name_asks_for(tmp_path: Path, rlhf: Command) -> None:
    made_run(tmp_path / "run", [{"reward/mean": 0.5}])
    assert rlhf("report", "run").stdout == "report.html\n"
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert rlhf("report", "run", "-o", "of.md").returncode == 0
    assert (tmp_path / "of.md").read_text().startswith("# made")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing",), "nothing is not a run folder: it has no recipe.yaml"),
        (("run", "-o", "report.pdf"), "a report is .html or .md: report.pdf is neither"),
        (("run", "-o", "no/where.md"), "no/where.md cannot be written (No such file or directory)"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, rlhf: Command, words: tuple[str, ...], said: str
) -> None:
    made_run(tmp_path / "run", [])
    ended = rlhf("report", *words)
    assert (ended.returncode, ended.stderr) == (2, f"error: {said}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
