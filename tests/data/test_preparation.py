"""Rows in a foreign shape become tasks: by a function, a condition and templates, and what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.config import build
from rlhf.data.config import DatasetConfig
from rlhf.data.preparation import RowCounts
from rlhf.data.sources import load_demonstrations, load_pairs, load_tasks, read_rows
from rlhf.errors import ConfigError, DataError, UserError

PUZZLES = [{"meta": {"level": n}, "left": n, "golds": [str(n)] * (n % 3)} for n in range(6)]


@pytest.fixture
def puzzles(tmp_path: Path) -> Path:
    return written(tmp_path / "puzzles.jsonl", PUZZLES)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config(file: Path, **settings: Any) -> DatasetConfig:
    given = {"path": str(file), "row": "tests.data.row_functions:from_puzzles", "template": "{{ left }}"}
    return build(DatasetConfig, given | settings)


def test_a_function_makes_rows_and_a_condition_keeps_them(puzzles: Path) -> None:
    counts = RowCounts()
    kept = list(read_rows(config(puzzles, filter="level >= 2 and answer != '4'"), counts))
    assert [(where[-5:], row) for where, row in kept] == [
        ("row 3", {"left": 2, "level": 2, "answer": "2"}), ("row 3", {"left": 2, "level": 2, "answer": "2"}),
        ("row 6", {"left": 5, "level": 5, "answer": "5"}), ("row 6", {"left": 5, "level": 5, "answer": "5"}),
    ]  # fmt: skip
    assert counts.describe() == "kept 4 of 6 rows"
    assert RowCounts(read=1000, made=1200, kept=812).describe() == (
        "kept 812 of 1,200 rows, which the row function made of 1,000"
    )


def test_the_limit_counts_the_rows_that_are_kept(puzzles: Path) -> None:
    assert [row["level"] for _, row in read_rows(config(puzzles, filter="level > 2", limit=1))] == [4]


def test_templates_write_the_question_and_the_system_message(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", [{"a": 0.10, "of": ["x", "y"], "system": "Sum.", "answer": "1"}])
    made = config(
        rows, row=None, template="{% for one in of %}\n{{ loop.index }}. {{ one }}\n{% endfor %}\n{{ row['a'] }}\n",
        system_template="{{ system }} Be brief.", prompt_suffix="!", response_column="answer",
    )  # fmt: skip
    expected = [("system", "Sum. Be brief."), ("user", "1. x\n2. y\n0.1\n!")]
    (task,), (demonstration,) = load_tasks(made), load_demonstrations(made)
    assert [(one.role, one.content) for one in task.messages] == expected
    assert [(one.role, one.content) for one in demonstration.prompt] == expected
    pairs = made.model_copy(update={"chosen_column": "system", "rejected_column": "answer"})
    assert [(one.role, one.content) for one in load_pairs(pairs).pairs[0].prompt] == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filter": "levl > 1"}, "row 2: filter fails: 'levl' is undefined; the row has 'left', 'level', 'answer'"),
        ({"filter": "lvl"}, "row 2: filter fails: 'lvl' is undefined"),
        ({"filter": "answer"}, "row 2: filter fails: it is 1, neither true nor false; compare it with a value"),
        ({"filter": "answer > 3"}, "row 2: filter fails: TypeError: '>' not supported between instances of 'str' and"),
        ({"filter": "level > 9"}, "puzzles.jsonl: kept 0 of 6 rows"),
        ({"template": "{{ question }}"}, "row 2: template fails: 'question' is undefined; the row has"),
        ({"template": "{{ row }}"}, "row 2: template fails: it writes an object where text is needed"),
        ({"template": " {{ '' }}"}, "row 2: template makes a blank question"),
        ({"template": "{{ left.__class__.__mro__ }}"}, "row 2: template fails: access to attribute '__class__'"),
        ({"row": "tests.data.row_functions:failing"}, "row_functions:failing failed: KeyError: 'no_such_column'"),
        ({"row": "tests.data.row_functions:a_text"}, "row_functions:a_text returned 'text'; it must return a row"),
        ({"row": "tests.data.row_functions:absent"}, "row is tests.data.row_functions:absent, which cannot be"),
    ],
)
def test_what_cannot_be_made_of_a_row_is_named(puzzles: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_tasks(config(puzzles, **settings))
    assert message in str(caught.value)


def test_a_template_makes_no_conversation(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]
    rows = written(tmp_path / "rows.jsonl", [{"messages": chat, "other": chat, "left": 1}])
    with pytest.raises(DataError, match="name the reply's column with response_column"):
        load_demonstrations(config(rows, row=None))
    with pytest.raises(DataError, match="column 'messages' holds the question, too, so remove template"):
        load_pairs(config(rows, row=None, chosen_column="messages", rejected_column="other"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filter": "level >> 1"}, "filter: Jinja cannot read line 1: unexpected '>'"),
        ({"template": "a\n{{ left }"}, "template: Jinja cannot read line 2: unexpected '}'"),
        ({"row": "module"}, "row is 'module'; give module:function"),
        ({"system_template": "a", "system_prompt": "b"}, "system_template and system_prompt both make the system"),
        ({"few_shot": {"k": 1}}, "few_shot: give either path (a file, folder or hub name) or rows"),
        ({"few_shot": {"k": 1, "path": "a", "rows": [{}]}}, "few_shot: give either path"),
        ({"path": None, "tasks": "a:b", "row": None}, "template is for rows of a dataset, but a:b makes complete"),
        ({"path": None, "seeds": 4, "row": None}, "template is for rows of a dataset, but seeds have no rows; remove"),
    ],
)
def test_what_a_recipe_cannot_mean_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(Path("rows.jsonl"), **settings)
    assert message in str(caught.value)
