"""Datasets become tasks, and one that cannot says which row and what to do, in one line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf.data.config import DatasetConfig
from rlhf.data.sources import load_tasks
from rlhf.errors import DataError
from rlhf.types import Message
from tests.pace import scaled

ROWS = [{"question": f"{n} + {n}?", "answer": f"double it\n#### {2 * n}", "level": n} for n in range(1, 6)]
Write = Callable[[str, list[dict[str, Any]]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def rows_to(name: str, rows: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return rows_to


def load(path: Path | str, **settings: Any) -> list[Any]:
    return load_tasks(DatasetConfig(path=str(path), **settings))


def refused(path: Path | str, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_row_becomes_a_task_with_all_its_columns(write: Write) -> None:
    task = load(write("rows.jsonl", ROWS), answer_pattern=r"####\s*(.+)")[2]
    assert (task.id, task.answer) == ("rows.jsonl/2", "6")
    assert task.messages == (Message(role="user", content="3 + 3?"),)
    assert dict(task.row) == ROWS[2]


def test_system_prompt_and_suffix_are_put_around_the_question(write: Write) -> None:
    task = load(write("rows.jsonl", ROWS), system_prompt="Be brief.", prompt_suffix=" Answer:")[0]
    assert task.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="1 + 1? Answer:"),
    )


def test_a_folder_has_one_file_a_split(write: Write) -> None:
    write("set/train.jsonl", ROWS)
    folder = write("set/test.jsonl", ROWS[:2]).parent
    assert len(load(folder)) == 5
    assert [task.id for task in load(folder, split="test")] == ["set/test/0", "set/test/1"]
    assert refused(folder, split="validation").endswith("no file for split 'validation'; the folder has test, train")


@pytest.mark.parametrize("path", ["nowhere.jsonl", "./nowhere", "a/b/c", "/nowhere/at/all"])
def test_a_missing_file_is_named_at_once_and_not_looked_for_on_the_hub(path: str) -> None:
    started = time.monotonic()
    assert "no such file or folder" in refused(path)
    assert time.monotonic() - started < scaled(0.2)


def test_an_empty_dataset_is_named(write: Write, tmp_path: Path) -> None:
    assert "the dataset is empty" in refused(write("empty.jsonl", []))
    (tmp_path / "header.csv").write_text("question,answer\n")
    assert "the dataset is empty" in refused(tmp_path / "header.csv")
    (tmp_path / "list.json").write_text("[]")
    assert "the dataset is empty" in refused(tmp_path / "list.json")


def test_a_missing_column_is_named_with_the_row_and_what_there_is(write: Write) -> None:
    message = refused(write("rows.jsonl", ROWS), prompt_column="prompt")
    assert message.endswith(
        "row 1 has no column 'prompt' (it has 'question', 'answer', 'level'); write prompt_column: question"
    )
    del (rows := [dict(row) for row in ROWS])[3]["answer"]
    assert "row 4 has no column 'answer'" in refused(write("hole.jsonl", rows))
    assert "name the right one with prompt_column" in refused(write("odd.jsonl", [{"text": "?"}]), prompt_column="ask")


def test_an_answer_that_the_pattern_does_not_find_is_named(write: Write) -> None:
    rows = [*ROWS, {"question": "?", "answer": "I do not know", "level": 0}]
    message = refused(write("rows.jsonl", rows), answer_pattern=r"####\s*(.+)")
    assert "row 6: answer_pattern" in message
    assert "'I do not know'" in message


def test_a_hub_that_cannot_be_reached_is_named() -> None:
    message = refused("nobody/nothing-of-that-name")
    assert message.startswith("nobody/nothing-of-that-name")
    assert "local path" in message


def test_rows_of_the_hub_are_read_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = datasets.Dataset.from_list(
        [{"question": "?", "answer": 2**62 + n, "made": {"by": ["me"]}} for n in range(3)]
    )
    monkeypatch.setattr("rlhf.data.sources._load_hub", lambda config, source: rows)
    tasks = load("owner/name", limit=2)
    assert [(task.answer, task.where) for task in tasks] == [
        (str(2**62), "owner/name, split 'train', row 1"),
        (str(2**62 + 1), "owner/name, split 'train', row 2"),
    ]
    assert load("owner/name", answer_column="made.by.0")[0].answer == "me"
