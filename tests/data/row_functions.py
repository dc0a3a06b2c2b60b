"""Row functions as users write them."""

from __future__ import annotations

from typing import Any


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return row


def from_puzzles(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Take the digits out of a puzzle, each of its answers in a row; leave out puzzles that have none."""
    row["level"] = row.pop("meta")["level"]
    return [row | {"answer": one} for one in row.pop("golds")] or None


def failing(row: dict[str, Any]) -> dict[str, Any]:
    return {"question": row["no_such_column"]}


def a_text(row: dict[str, Any]) -> str:
    return "text"
