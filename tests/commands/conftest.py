"""A small recipe on disk, and the command line as a person runs it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pace import scaled

RLHF = Path(sys.executable).parent / "rlhf"
RECIPE = """\
model: {tiny: {max_position_embeddings: 128}}
data:
  train: {path: ROWS}
sampling: {max_tokens: 8}
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended. `seconds` are of the processor: those on the wall depend on what else runs."""

    code: int
    out: str
    err: str
    seconds: float


Command = Callable[..., Ended]


def processor_seconds() -> float:
    """Processor time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture
def rlhf(tmp_path: Path) -> Command:
    """Run `rlhf …` in an empty folder."""

    def run(*arguments: object) -> Ended:
        words = [str(RLHF), *map(str, arguments)]
        before = processor_seconds()
        ended = subprocess.run(words, capture_output=True, text=True, timeout=scaled(60), cwd=tmp_path)
        return Ended(ended.returncode, ended.stdout, ended.stderr, processor_seconds() - before)

    return run


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
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 64}))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "tokenizer.json").write_text("{}")
    return folder
