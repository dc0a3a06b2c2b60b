"""JSON from others: text that can be written again as it was read, and nothing else."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json


def read_strict_json(text: str | bytes) -> Any:
    """What JSON text says. Raises `ValueError` for what Python's own reader lets pass or breaks at: bytes that are no
    UTF-8, halves of characters, NaN, integers of more than 4,300 digits, what is nested deeper than some 200 levels."""
    return from_json(text if isinstance(text, bytes) else text.encode(), allow_inf_nan=False)
