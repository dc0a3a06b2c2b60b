"""What stands in a file is what is read, and a file that cannot be read is named with its line."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rlhf.data.columns import WrittenNumber, column_value, exact_json
from rlhf.data.config import DatasetConfig
from rlhf.data.files import rows_in_file
from rlhf.data.sources import load_tasks
from rlhf.errors import DataError
from rlhf.reward.row_lines import read_line, request_lines


def answers(path: Path, **settings: Any) -> list[str | None]:
    return [task.answer for task in load_tasks(DatasetConfig(path=str(path), **settings))]


def refused(path: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_tasks(DatasetConfig(path=str(path), **settings))
    assert "\n" not in str(caught.value)
    return str(caught.value)


WRITTEN = [
    "4", "4.5", "0.10", "1e3", "-0.0", "9223372036854775808", "123456789012345678901234567890", "2024-01-05",
    "2024-01-05T00:00:00", "016", "None", "nan", "NA", "null", "true", "1_000", " 5 ", "½", "a,b",
]  # fmt: skip
NUMBERS = WRITTEN[:7]


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_cell_of_a_csv_file_is_text_as_it_is_written(tmp_path: Path, ending: str) -> None:
    plain, path = tmp_path / "plain", tmp_path / f"rows.{ending}"
    with plain.open("w", newline="") as file:
        csv.writer(file).writerows([["question", "answer"], *([one, one] for one in WRITTEN)])
    path.write_bytes(gzip.compress(plain.read_bytes()) if ending.endswith("gz") else plain.read_bytes())
    assert answers(path) == WRITTEN
    assert [task.messages[0].content for task in load_tasks(DatasetConfig(path=str(path)))] == WRITTEN


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "json"])
def test_texts_and_numbers_of_json_keep_what_is_written(tmp_path: Path, ending: str) -> None:
    lines = [f'{{"question": "?", "answer": {one}}}' for one in [*map(json.dumps, WRITTEN), *NUMBERS, "true"]]
    text = f"[{','.join(lines)}]" if ending == "json" else "\n".join(lines)
    path = tmp_path / f"rows.{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    assert answers(path) == [*WRITTEN, *NUMBERS, "true"]


def test_json_lines_may_be_named_json(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"question": "?", "answer": 4}\n{"question": "?", "answer": 0.10}\n')
    assert answers(tmp_path / "rows.json") == ["4", "0.10"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pyarrow.array([Decimal("0.10"), Decimal("4.00")]), ["0.10", "4.00"]),
        (pyarrow.array([2**63, 2**64 - 1], pyarrow.uint64()), ["9223372036854775808", "18446744073709551615"]),
        (pyarrow.array([datetime.date(2024, 1, 5)]), ["2024-01-05"]),
        (pyarrow.array([True, False]), ["true", "false"]),
        (pyarrow.array(["016", "nan"]).dictionary_encode(), ["016", "nan"]),
        (pyarrow.array([2**53 + 1]), ["9007199254740993"]),
        (pyarrow.array([0.1, 2.5, 123], pyarrow.float32()), ["0.1", "2.5", "123.0"]),
    ],
)
def test_values_of_parquet_are_exact(tmp_path: Path, values: Any, expected: list[str]) -> None:
    table = pyarrow.table({"question": ["?"] * len(values), "answer": values})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    assert answers(tmp_path / "rows.parquet") == expected


@pytest.mark.parametrize("value", [datetime.datetime(2024, 1, 5), b"4", datetime.time(3, 30)])
def test_values_of_parquet_without_an_exact_text_are_refused(tmp_path: Path, value: Any) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"question": ["?"], "answer": [value]}), tmp_path / "rows.parquet")
    assert "rows.parquet, row 1: column 'answer' holds a " in (error := refused(tmp_path / "rows.parquet"))
    assert "store it as text" in error


def test_a_missing_value_of_parquet_is_named(tmp_path: Path) -> None:
    for values in (["4", None], [4.0, float("nan")]):
        table = pyarrow.table({"question": ["?", "?"], "answer": values})
        pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
        assert "row 2 has no value in column 'answer' (it has 'question')" in refused(tmp_path / "rows.parquet")


def test_parquet_fills_gaps_of_objects_in_lists_which_are_gaps_again(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "?"}, {"role": "tool", "content": "4", "tool_call_id": "a"}]
    pyarrow.parquet.write_table(pyarrow.table({"chat": [chat], "extra": [{"a": None}]}), tmp_path / "rows.parquet")
    assert [row for _, row in rows_in_file(tmp_path / "rows.parquet")] == [{"chat": chat, "extra": {"a": None}}]


def test_a_number_keeps_its_text_and_is_a_plain_float_to_a_scorer() -> None:
    number = exact_json("[0.10]")[0]
    assert (str(number), f"{number}", number + 0.4) == ("0.10", "0.10", 0.5)
    assert str(pickle.loads(pickle.dumps(number))) == "0.10"
    (line,) = request_lines([[]], {"value": WrittenNumber("0.10"), "in": [WrittenNumber("2.50")]})
    _, row = read_line(line)
    assert row == {"value": 0.1, "in": [2.5]}
    assert type(row["value"]) is float


LATIN, BOM = "é".encode("latin-1"), b"\xef\xbb\xbf"
ROW = b'{"question": "?", "answer": "4"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", ROW + b"\n\n{oops\n", "a.jsonl, row 4 is not JSON: Expecting property name"),
        ("a.jsonl", ROW + b'{"question": "?"\n', "a.jsonl, row 2 is not JSON: Expecting ',' delimiter (character 17)"),
        ("a.jsonl", ROW + b'{"answer": 1, "answer": 2}\n', "a.jsonl, row 2 is not JSON: the key 'answer' occurs twice"),
        ("a.jsonl", ROW + b'"text"\n', "a.jsonl, row 2 is not a JSON object; every row must be one"),
        ("a.jsonl", ROW + b"\n" + ROW.replace(b"?", LATIN), "a.jsonl, line 3: byte 0xe9 is not UTF-8; convert it"),
        ("a.csv", b"question,answer\n?,4\n" + LATIN + b",5\n", "a.csv, line 3: byte 0xe9 is not UTF-8"),
        ("a.jsonl", ROW.decode().encode("utf-16"), "a.jsonl is UTF-16, not UTF-8; convert it: iconv"),
        ("a.csv", "question,answer\n?,4\n".encode("utf-16-le"), "a.csv is UTF-16, not UTF-8"),
        ("a.json", b'[{"question": "?",\n "answer": }]', "a.json, line 2 is not JSON: Expecting value"),
        ("a.json", b'["?"]', "a.json, row 1 is not a JSON object"),
        ("a.csv", b'question,answer\n"?,4\n?,5\n', "a.csv, line 3 is not CSV: unexpected end of data"),
        ("a.csv", b"question,answer\n?,4\n\n?,4,5\n", "a.csv, row 2 (line 4) has 3 cells, but the header has 2"),
        ("a.csv", b"question,question\n?,4\n", "a.csv: the header names 'question' twice"),
        ("a.csv", b'question,answer\n"a\nb",4\n?,\n', "a.csv, row 2 (line 4) has no value in column 'answer'"),
        ("a.jsonl", ROW + b'{"question": "a\\ud800", "answer": ""}', "a.jsonl, row 2 has a lone surrogate"),
        ("a.jsonl", ROW + b'\n{"question": " \\n", "answer": ""}', "a.jsonl, row 3: the question in column"),
        ("a.jsonl.gz", gzip.compress(ROW * 99, mtime=0)[:-9], "a.jsonl.gz: cannot be read: "),
        ("a.parquet", b"PAR1", "a.parquet: cannot be read as Parquet: "),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_line_with_its_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refused(tmp_path / name)


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", ROW), ("a.csv", b"question,answer\r\n?,4\r\n")])
def test_a_mark_of_byte_order_is_no_part_of_a_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(BOM + content)
    assert answers(tmp_path / name) == ["4"]


def test_rows_beyond_the_limit_are_not_read_and_those_before_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(ROW + b"\n" + ROW + b"{oops")
    tasks = load_tasks(DatasetConfig(path=str(tmp_path / "a.jsonl"), limit=2))
    assert [task.where for task in tasks] == [f"{tmp_path / 'a.jsonl'}, row 1", f"{tmp_path / 'a.jsonl'}, row 3"]


def test_rows_of_a_folder_are_named_by_their_own_file(tmp_path: Path) -> None:
    (tmp_path / "train-0.jsonl").write_bytes(ROW)
    (tmp_path / "train-1.jsonl").write_bytes(ROW + b"{}")
    assert "train-1.jsonl, row 2 has no column 'question'" in refused(tmp_path)
    (tmp_path / "train.csv").write_bytes(b"question,answer\n?,4\n")
    assert "the split 'train' has .csv, .jsonl files; keep only one kind" in refused(tmp_path)


NESTED = {
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "text": json.dumps({"ground_truth": ["5", 0.5]}),
    "python": "{'ground_truth': '6'}",
    "numpy": "['4' '5']",
    "a.b": "7",
    "a": {"b": "8", "c.d": "9", "e": [{"f": "10"}]},
    "x": {"y": None},
    "x.y": "11",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward_model.ground_truth", "4"),
        ("text.ground_truth.0", "5"),
        ("text.ground_truth.-2", "5"),
        ("python.ground_truth", "6"),
        ("a.b", "7"),
        ("a.c.d", "9"),
        ("a.e.0.f", "10"),
        ("x.y", "11"),
        ("a.e.1.f", None),
        ("a.e.f", None),
        ("reward_model.ground_truth.0", None),
        ("numpy.0", None),
        ("absent.b", None),
    ],
)
def test_dots_lead_into_objects_and_lists_and_names_with_dots_come_first(name: str, value: Any) -> None:
    assert column_value(NESTED, name) == value


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("reward_model", "holds an object where text is needed, .* write answer_column: reward_model.ground_truth$"),
        ("answers", "holds a list where text is needed, it reads .*; write answer_column: answers.0$"),
        ("deep", "; write answer_column: deep.0.value$"),
        ("empty", "; store it as text$"),
        ("typed", "; write answer_column: typed.value.0$"),
        ("reward_model.truth", r"has no column .* \('reward_model' has 'style', 'ground_truth'\); write answer_column"),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_list_or_an_object_is_no_text_and_the_name_to_write_is_said(
    tmp_path: Path, ending: str, column: str, message: str
) -> None:
    row = {
        "question": "?", "reward_model": {"style": "rule", "ground_truth": "4"}, "answers": ["4", "5"],
        "deep": [{"value": 4}], "empty": [[]], "typed": {"type": "m", "value": ["4"]},
    }  # fmt: skip
    path = tmp_path / f"rows.{ending}"
    if ending == "jsonl":
        path.write_text(json.dumps(row))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    with pytest.raises(DataError, match=message):
        answers(path, answer_column=column)
    assert answers(path, answer_column="reward_model.ground_truth") == ["4"]


@pytest.mark.parametrize("write", [json.dumps, str])
def test_an_object_with_the_truth_in_a_cell_is_no_answer_and_other_lists_in_cells_are_texts(
    tmp_path: Path, write: Callable[[Any], str]
) -> None:
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = [["question", "reward_model", "answer"], ["?", write({"style": "rule", "ground_truth": "4"}), "[1, 2]"]]
        csv.writer(file).writerows(rows)
    assert "write answer_column: reward_model.ground_truth" in refused(
        tmp_path / "rows.csv", answer_column="reward_model"
    )
    assert answers(tmp_path / "rows.csv", answer_column="reward_model.ground_truth") == ["4"]
    assert answers(tmp_path / "rows.csv") == ["[1, 2]"]
