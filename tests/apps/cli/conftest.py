"""A small recipe on disk, and the command line as a person runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.model_folders import save_folder
from tests.warm import command_line
from tests.warm.client import Ended

RECIPE = """\
model: {tiny: {max_position_embeddings: 128}}
data:
  train: {path: ROWS}
sampling: {max_tokens: 8}
"""


Command = Callable[..., Ended]


@pytest.fixture
def rlhf(tmp_path: Path) -> Command:
    """Run `rlhf …` in an empty folder."""
    return partial(command_line.rlhf, folder=tmp_path)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(8)))
    return file


@pytest.fixture
def recipe(tmp_path: Path, rows: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(RECIPE.replace("ROWS", str(rows)))
    return file


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A folder with the files of a model, as far as a check looks."""
    return save_folder(tmp_path / "model")
