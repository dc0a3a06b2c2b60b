"""Columns of a row: found by dotted names, and read as text exactly as the file has them."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from tokenize import NL, STRING, TokenError, generate_tokens
from typing import Any

from rlhf.errors import DataError

Row = Mapping[str, Any]
LIKELY = {
    "prompt_column": (
        "prompt", "question", "problem", "instruction", "query", "input", "messages", "conversations", "conversation",
    ),
    "answer_column": (
        "answer", "reward_model.ground_truth", "ground_truth", "label", "solution", "expected_answer", "final_answer",
        "target",
    ),
    "response_column": ("completion", "response", "output", "chosen"),
    "chosen_column": ("chosen",),
    "rejected_column": ("rejected",),
}  # fmt: skip
"""Names that data sets give to the columns that a recipe names, the likeliest first."""
WHOLE = ("messages", "conversations", "conversation")
"""Columns that probably hold whole conversations, with their replies."""
TEXTS = ("ground_truth", "answer", "solution", "text", "content", "value")
"""Names of the text that is meant in an object."""


class WrittenNumber(float):
    """A number with a point or an exponent in a JSON file. Its text is that of the file: `0.10`, not `0.1`."""

    text: str

    def __new__(cls, text: str) -> WrittenNumber:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return values


exact_json = json.JSONDecoder(parse_float=WrittenNumber, object_pairs_hook=_once_each).decode
"""Parses JSON whose numbers keep their digits. Raises `ValueError`, also for an object with a key twice."""


def from_json(value: Any) -> Any:
    """Read a list or mapping that a data set stores as text, as JSON or as Python prints it; other text stays text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        for read in (exact_json, _python_value):
            with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError, TokenError):
                return read(value.strip())
    return value


def _python_value(text: str) -> Any:
    """Return the value that Python prints as `text`. Raises `ValueError` for texts that it would join."""
    tokens = (token.type for token in generate_tokens(StringIO(text).readline) if token.type != NL)
    if (STRING, STRING) in pairwise(tokens):
        raise ValueError("texts without a comma between them")
    return ast.literal_eval(text)


def column_value(row: Any, column: str) -> Any:
    """Return the value of a column, or None. Dots lead into objects and lists (`reward_model.ground_truth`,
    `answers.0`), also into those stored as text. A name that contains the dots itself comes first."""
    if isinstance(row, dict) and not is_missing(value := row.get(column)):
        return value
    inside = from_json(row)
    parts = column.split(".")
    for length in range(len(parts), 0, -1):
        value = _member(inside, ".".join(parts[:length]))
        if length < len(parts) and value is not None:
            value = column_value(value, ".".join(parts[length:]))
        if not is_missing(value):
            return value
    return None


def _member(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and name.removeprefix("-").isdecimal():
        place = int(name)
        return value[place] if -len(value) <= place < len(value) else None
    return None


def is_missing(value: Any) -> bool:
    """Whether a value is missing: readers fill gaps with None or NaN."""
    return value is None or (isinstance(value, float) and value != value)


def check_columns(row: Row, where: str, *, also: Sequence[str] = (), **wanted: str | None) -> None:
    """Check that the row has every wanted column, by the recipe's key. Raises `DataError` for the first that is
    missing, with the settings that read such a row; `also` are further keys that it may need."""
    missing = {key: name for key, name in wanted.items() if name is not None and column_value(row, name) is None}
    for key, column in missing.items():
        parent, dot, _ = column.rpartition(".")
        inside = from_json(column_value(row, parent)) if dot else row
        its, members = (repr(parent), inside) if dot and isinstance(inside, Mapping) else ("it", row)
        has = column_names(members)
        lines = suggested_lines(row, *missing, *also)
        raise DataError(
            f"{where} has no {'value in ' if column in row else ''}column {column!r} ({its} has {has}); "
            + (f"write {lines}" if lines else f"name the right one with {key}")
            + (", or write answer_column: null if no reward reads it" if key == "answer_column" else "")
        )


def column_of(row: Row, column: str, key: str, where: str) -> Any:
    """Return the value of the column that the recipe's `key` names. Raises `DataError`."""
    value = column_value(row, column)
    if value is None:
        check_columns(row, where, **{key: column})
    return value


def suggested_lines(row: Row, *keys: str) -> str:
    """Return settings for the columns that `row` seems to have; empty if it has none of the likely ones."""
    found = {
        key: next((name for name in LIKELY.get(key, ()) if column_value(row, name) is not None), "") for key in keys
    }
    if found.get("prompt_column") in WHOLE:
        found.pop("response_column", None)
    return ", ".join(f"{key}: {name}" for key, name in found.items() if name)


def column_text(row: Row, column: str, key: str, where: str) -> str:
    """Return the text of a column, as the file has it. Raises `DataError` for values without an exact text."""
    value = column_of(row, column, key, where)
    text = as_text(value)
    if text is not None and TEXTS[0] in text and isinstance(stored := from_json(text), Mapping):
        value, text = stored, None  # verl's `reward_model` as a cell of a CSV file
    if text is None:
        inner = inner_text(value)
        raise DataError(
            f"{where}: column {column!r} holds {kind_of(value)} where text is needed, it reads {short_value(value)}; "
            + (f"write {key}: {column}.{inner}" if inner else "store it as text")
        )
    return text


def as_text(value: Any) -> str | None:
    """Return text, numbers, truth values (`true`, `false`) and dates as text; None for everything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    is_exact = isinstance(value, str | int | float | Decimal | date) and not isinstance(value, datetime)
    return str(value) if is_exact else None


def inner_text(value: Any) -> str:
    """Return the dotted name of the text that is probably meant in a list or object; empty if there is none."""
    value = from_json(value)
    members = value if isinstance(value, Mapping) else {"0": value[0]} if isinstance(value, list) and value else {}
    inner = {name: "" if as_text(one) is not None else inner_text(one) for name, one in members.items()}
    known = [name for name in TEXTS if name in members]
    texts = [name for name, one in members.items() if as_text(one) is not None]
    found = next((name for name in (*known, *texts, *members) if name in texts or inner[name]), "")
    return ".".join(filter(None, (found, inner.get(found))))


def kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def short_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def column_names(row: Row) -> str:
    """Name the columns of a row that have a value, for errors."""
    return ", ".join(repr(name) for name, value in row.items() if not is_missing(value)) or "none"
