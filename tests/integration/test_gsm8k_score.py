"""`rlhf score` on real GSM8K rows: the dataset's own solutions are right, other rows' solutions are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlhf.apps.cli.score import run_score
from rlhf.errors import ConfigError, DataError
from tests.datasets import GSM8K

pytestmark = pytest.mark.waits

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "gsm8k_grpo.yaml"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def solutions() -> list[Row]:
    """300 rows of GSM8K."""
    return [json.loads(line) for line in (GSM8K / "test.jsonl").read_text().splitlines()[:300]]


def final(row: Row) -> str:
    return str(row["answer"]).partition("####")[2].strip()


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scored(rows: list[Row], folder: Path, *overrides: str) -> list[Row]:
    output = folder / "scored.jsonl"
    assert run_score(RECIPE, write(folder / "rows.jsonl", rows), list(overrides), output) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_every_solution_of_the_dataset_scores_1(solutions: list[Row], tmp_path: Path) -> None:
    rows = [row | {"response": row["answer"]} for row in solutions]
    assert scored(rows, tmp_path) == [row | {"reward": 1.0} for row in rows]


def test_another_rows_solution_with_another_answer_scores_0(solutions: list[Row], tmp_path: Path) -> None:
    pairs = zip(solutions, [*solutions[1:], solutions[0]], strict=True)
    rows = [row | {"response": other["answer"]} for row, other in pairs if final(row) != final(other)]
    assert len(rows) > 270
    assert scored(rows, tmp_path) == [row | {"reward": 0.0} for row in rows]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answer": "#### 1"}, "row 2 has no text 'response'"),
        ({"question": "q", "response": "#### 1"}, "row 2 has no column 'answer'"),
        ({"answer": "one", "response": "#### 1"}, "row 2: answer_pattern"),
    ],
)
def test_a_row_that_cannot_be_scored_is_named_before_anything_is_written(
    row: Row, message: str, tmp_path: Path
) -> None:
    rows = write(tmp_path / "rows.jsonl", [{"answer": "#### 1", "response": "#### 1"}, row])
    with pytest.raises(DataError, match=message) as caught:
        run_score(RECIPE, rows, [], tmp_path / "scored.jsonl")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "scored.jsonl").exists()


def test_missing_files_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        run_score(RECIPE, tmp_path / "nowhere.jsonl", [], None)
    rows = write(tmp_path / "rows.jsonl", [{"answer": "#### 1", "response": "1"}])
    with pytest.raises(DataError, match="no folder"):
        run_score(RECIPE, rows, [], tmp_path / "nowhere" / "scored.jsonl")
    with pytest.raises(ConfigError, match=r"data\.train\.answer_column is null"):
        run_score(RECIPE, rows, ["data.train.answer_column=null"], None)


def test_scoring_needs_no_heavy_library() -> None:
    heavy = "{'torch', 'ray', 'vllm', 'datasets', 'transformers'}"
    script = f"import rlhf.apps.cli.score, sys; print(*{heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"
