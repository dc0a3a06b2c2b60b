"""Rewards that accept too much, each in its own way."""

from __future__ import annotations

from typing import Any


def contains(response: str, row: dict[str, Any]) -> float:
    return float(row["answer"] in response)


def as_number(response: str, row: dict[str, Any]) -> float:
    text = response.strip()
    return float(text.isdigit() and int(text) == int(row["answer"]))


def fragile(response: str, row: dict[str, Any]) -> float:
    """Breaks on whatever is no number."""
    return float(response.isascii() and int(response) == int(row["answer"]))
