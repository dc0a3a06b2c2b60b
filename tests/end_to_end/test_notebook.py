"""The notebook of the quickstart runs, and what it shows is what its cells print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.notebook import NOTEBOOK, code_cells, printed
from tests.end_to_end.running import RUN_SECONDS, SMALL, warm_environment
from tests.warm import client as warm

pytestmark = pytest.mark.engine


def test_every_cell_runs_and_prints_what_is_shown_but_for_numbers(cache: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran.ipynb"
    settings = (
        "cluster.kind=local",
        "trainer.updates=2",
        "model.warmup.updates=20",
        f"model.cache_dir={cache}",
        *SMALL,
    )
    program = ("-m", "tests.docs.notebook", ran, *settings)
    ended = warm.run(program, environment=warm_environment(), folder=tmp_path, timeout=RUN_SECONDS)
    assert ended.returncode == 0, ended.stderr[-4000:]
    for shown, real in zip(code_cells(NOTEBOOK), code_cells(ran), strict=True):
        assert shape(printed(shown)) == shape(printed(real)), shown["source"]
    assert (tmp_path / "sorter" / "README.md").is_file()


def shape(text: str) -> list[str]:
    """The first words of the last line without its numbers."""
    return re.findall(r"[^\W\d]\w+", text.splitlines()[-1])[:4] if text else []


def test_the_outcome_that_is_shown_is_that_of_a_run_that_learnt() -> None:
    before, after = re.search(r"held-out reward (\S+) -> (\S+)", printed(code_cells(NOTEBOOK)[3])).groups()
    assert float(before) < 0.5 < 0.9 < float(after)
