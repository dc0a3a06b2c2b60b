"""Strict parsing of JSON from clients: only text that can be encoded again as it was read."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json


def read_strict_json(text: str | bytes) -> Any:
    """Parse JSON text. Raises `ValueError` for input that Python's own parser accepts or fails on: invalid UTF-8, lone
    surrogates, NaN, integers of more than 4,300 digits, nesting deeper than about 200 levels."""
    return from_json(text if isinstance(text, bytes) else text.encode(), allow_inf_nan=False)
