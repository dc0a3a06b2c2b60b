"""`rlhf report` writes a page."""

from __future__ import annotations

from pathlib import Path

from tests.apps.cli.conftest import Command
from tests.runs.made_run import made_run


def test_the_command_writes_a_page(tmp_path: Path, rlhf: Command) -> None:
    made_run(tmp_path / "run", [{"reward/mean": 0.5}])
    assert rlhf("report", "run").stdout == "report.html\n"
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
